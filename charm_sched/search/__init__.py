"""Strategies and their parameters, compared by simulation."""
