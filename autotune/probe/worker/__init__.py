"""The probed process: one JSON request in, one JSON result out.

A program of its own: the standard library, torch, transformers, peft and accelerate, and nothing of
autotune. Run it as `python -m autotune.probe.worker REQUEST RESULT`, or copy this folder to any
machine that can train and run `python -m <folder> REQUEST RESULT` beside it.
"""
