"""Measurements worth a GPU's time."""
