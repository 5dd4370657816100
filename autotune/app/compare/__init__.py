"""compare room."""
