"""The Optuna study of priced candidates: its space, samplers, storage and record."""
