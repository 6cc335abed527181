"""Sweeps: configurations, jobs, runners and their results."""
