"""The same job answered again, beside what was answered before. `autotune recompute`."""
