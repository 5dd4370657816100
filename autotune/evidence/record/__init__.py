"""Which run did a row of a public table measure, and what? Row -> run -> Observations."""
