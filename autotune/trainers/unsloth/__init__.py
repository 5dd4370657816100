"""unsloth room."""
