"""log room."""
