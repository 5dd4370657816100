"""claims room."""
