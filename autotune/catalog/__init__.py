"""catalog room."""
