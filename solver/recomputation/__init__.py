"""Recomputation by proof: Checkmate's program, pebbling, POET's program."""
