"""What a report looks like in a real browser."""
