"""`tune --score probe`: candidates are really run, and the bill is made of what was measured."""
