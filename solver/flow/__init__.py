"""FLOW: the integer program behind the bounds and the method of that name."""
