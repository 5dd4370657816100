"""Many runs on several machines within a budget: read, priced, placed, cut. `autotune plan`."""
