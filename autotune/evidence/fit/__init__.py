"""What do measured runs teach the time and memory models? The constants of calibration.toml."""
