"""What this machine itself does in a second: measured in a process of its own, kept with its date."""
