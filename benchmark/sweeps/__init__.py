"""Sweeps: configurations, jobs, runners and results."""
