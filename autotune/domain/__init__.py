"""What are the nouns? Pure: no files, clocks, torch or optuna.

`typed` is what a person writes, `answer` what a command answers; the nouns themselves stand here.
"""
