"""record room."""
