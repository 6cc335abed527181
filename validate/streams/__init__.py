"""Simulation of kernels side by side on several streams."""
