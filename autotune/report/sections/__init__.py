"""sections room."""
