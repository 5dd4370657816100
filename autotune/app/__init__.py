"""app room."""
