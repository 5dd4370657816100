"""transformers' Trainer and TRL's SFTTrainer: arguments by version, scripts, launch files."""
