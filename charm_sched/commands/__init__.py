"""What the commands share, and what each does with its arguments."""
