"""trainers room."""
