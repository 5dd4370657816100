"""validation room."""
