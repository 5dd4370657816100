"""What did past trainings leave behind, and what do they teach? `autotune learn`."""
