"""Comparisons of methods, with their tables and pictures."""
