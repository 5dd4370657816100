"""What this machine itself does in a second: measured apart, kept with its date."""
