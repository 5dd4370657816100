"""Whether an answer agrees with itself: every figure worked out again from the others."""
