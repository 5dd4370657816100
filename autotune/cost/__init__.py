"""What does a candidate cost in seconds, bytes and dollars? Pure formulas over named columns.

`model` composes the bill of its components; `time` holds the seconds, `memory` the bytes, `spread`
how far either may be off. What both sides read (columns, batches, parameters) stands here.
"""
