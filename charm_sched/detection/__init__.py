"""The machine at hand: what the kernel and the vendors' tools say about it, as one topology."""
