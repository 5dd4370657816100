"""fit room."""
