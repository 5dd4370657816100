"""space room."""
