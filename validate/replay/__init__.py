"""Symbolic replay, which tests the checker and shares only the formats with it."""
