"""Dynamic storage allocation alone."""
