"""The CPU backend: streams as threads, real kernels on one array."""
