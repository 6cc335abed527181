"""What only a GPU can tell: the stages of ``pebbler measure``."""
