"""Damaged and hostile input for everything that autotune reads: `python -m bench.fuzz`."""
