"""hf room."""
