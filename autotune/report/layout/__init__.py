"""layout room."""
