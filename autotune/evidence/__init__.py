"""evidence room."""
