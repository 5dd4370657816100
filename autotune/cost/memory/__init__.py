"""How many bytes does one device hold, when, and does that fit? `component` is the way in."""
