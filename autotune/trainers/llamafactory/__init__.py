"""LLaMA-Factory: its arguments, and the newer format v1."""
