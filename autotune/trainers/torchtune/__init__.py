"""torchtune's YAML."""
