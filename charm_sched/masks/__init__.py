"""Attention masks as intervals of keys, and the exact work under them."""
