"""spread room."""
