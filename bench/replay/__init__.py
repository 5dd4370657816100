"""Search on machines that exist: public sweeps, and the recorded grid of a processor."""
