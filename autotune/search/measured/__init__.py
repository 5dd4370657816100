"""measured room."""
