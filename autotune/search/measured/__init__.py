"""A study whose trials are measured: who is next, measured again, believed, remembered."""
