"""Which machine? The best configuration of every offer side by side. `autotune compare`."""
