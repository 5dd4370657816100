"""litgpt room."""
