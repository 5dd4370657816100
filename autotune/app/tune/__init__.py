"""The main job scored by the model: priced, tried, traced where in doubt, one recommended."""
