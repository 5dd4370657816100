"""How a person reads `autotune compare`: one row a machine, and what would turn their order."""
