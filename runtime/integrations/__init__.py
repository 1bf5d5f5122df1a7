"""Adapters for model libraries; each imports its library only when it is used."""
