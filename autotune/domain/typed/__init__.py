"""What may a person write? The job and campaign file, key by key, and values with units."""
