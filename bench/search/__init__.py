"""How many probes a sampler needs, on machines whose truth is known."""
