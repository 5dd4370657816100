"""campaign room."""
