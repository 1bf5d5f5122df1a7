"""Start and end of each operation, and what follows from them."""
