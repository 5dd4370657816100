"""What does a training's own log say? A Trainer's state, a record or a CSV as one RunLog."""
