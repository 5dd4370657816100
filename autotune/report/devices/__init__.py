"""devices room."""
