"""What does a candidate cost in seconds, bytes and dollars? Pure formulas over named columns.

`model` composes the components' tables over candidates, `bill` is what comes of it; `time` holds
the seconds, `memory` the bytes, `spread` how far either may be off. What both sides read (columns,
batches, parameters, fitted constants, and what one knob does to both) stands here.
"""
