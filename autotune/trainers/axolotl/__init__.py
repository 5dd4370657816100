"""axolotl room."""
