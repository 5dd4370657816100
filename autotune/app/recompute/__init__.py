"""recompute room."""
