"""The first screen of each answer: what a reader needs to act, in at most thirty lines."""
