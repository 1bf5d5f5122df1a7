"""Other machines, lengths and layouts; why a plan takes as long as it does."""
