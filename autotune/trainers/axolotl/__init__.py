"""axolotl's YAML and its plugins."""
