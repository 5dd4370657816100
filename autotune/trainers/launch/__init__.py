"""launch room."""
