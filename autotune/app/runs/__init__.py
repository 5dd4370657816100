"""runs room."""
