"""typed room."""
