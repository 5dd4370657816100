"""lists room."""
