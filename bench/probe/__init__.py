"""What a probe costs, and how far to trust it."""
