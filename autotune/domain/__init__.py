"""domain room."""
