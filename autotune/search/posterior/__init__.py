"""posterior room."""
