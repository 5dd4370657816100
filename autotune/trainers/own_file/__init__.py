"""The user's own file given back: what is written, and that it is no other run."""
