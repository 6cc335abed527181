"""Work in another process, and signals."""
