"""syntax room."""
