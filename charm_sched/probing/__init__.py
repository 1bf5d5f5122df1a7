"""Probing: what transfers on the real machine say about its links."""
