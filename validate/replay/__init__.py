"""Symbolic replay: what judges the checker, and shares nothing with it but the formats."""
