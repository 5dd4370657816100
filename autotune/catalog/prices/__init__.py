"""prices room."""
