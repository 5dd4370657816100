"""memory room."""
