"""time room."""
