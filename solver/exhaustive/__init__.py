"""Exhaustive search, for small instances."""
