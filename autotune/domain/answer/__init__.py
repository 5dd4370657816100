"""answer room."""
