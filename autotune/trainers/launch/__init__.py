"""What starts a training: launcher configs, commands, run.sh and what it needs."""
