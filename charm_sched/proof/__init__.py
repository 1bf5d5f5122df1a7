"""What is proved of a plan: exactly attention, no deadlock, so much memory."""
