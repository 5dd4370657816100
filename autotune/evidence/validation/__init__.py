"""How far is the model from what was measured? The table of `autotune validate`."""
