"""whatif room."""
