"""A fault at every file operation of a command, then the command again."""
