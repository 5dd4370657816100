"""Several workers on one search while they, who leads it and its database are killed."""
