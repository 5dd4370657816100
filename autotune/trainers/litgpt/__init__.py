"""litgpt's YAML."""
