"""Kernels side by side on several streams, simulated."""
