"""The plan: one immutable table of operations, how it is written, stored and repeated."""
