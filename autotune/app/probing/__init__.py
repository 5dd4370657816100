"""probing room."""
