"""Which devices, in which order: named as the system names them, and chosen by simulation."""
