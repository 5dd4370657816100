"""Which candidate next, and which is best? The only room that imports optuna.

Choosing among priced candidates stands here (`selection`, `alternatives`), with what a sampler asks
of a cost model (`priced`) and a bill as that (`billed`, `axes`). `posterior` is what measurements
teach of the rest, `study` explores priced candidates, `measured` those that are probed. What a
candidate costs is in `cost`, and who runs one in `probe`.
"""
