"""job room."""
