"""A run's log against its prediction, and what later answers learn of it. `autotune verify`."""
