"""Probes: a configuration run for about a minute on a device at hand, and what it measured."""
