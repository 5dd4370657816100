"""What is printed and written by the commands, recorded, so that moving code cannot change it."""
