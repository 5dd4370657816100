"""verify room."""
