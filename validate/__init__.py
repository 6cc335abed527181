"""Schedules and proofs: the schedule format, the simulator, the checker, and symbolic replay."""
