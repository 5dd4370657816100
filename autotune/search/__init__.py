"""Which candidate next, and which is best? The only room that imports optuna.

`study` explores priced candidates, `measured` those that are probed, `posterior` is what
measurements teach of the rest; choosing among priced candidates stands here.
"""
