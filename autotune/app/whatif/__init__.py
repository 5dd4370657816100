"""What would change the answer? Today to the pick, closed knobs, what would make it fit."""
