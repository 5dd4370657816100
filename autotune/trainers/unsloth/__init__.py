"""Scripts with Unsloth's calls."""
