"""llamafactory room."""
