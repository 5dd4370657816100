"""How a person reads `autotune plan`: what many runs cost, which are kept, when each runs."""
