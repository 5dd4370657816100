"""search room."""
