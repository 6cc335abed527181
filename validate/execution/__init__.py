"""Execution of schedules: operations on real streams, with real kernels at the planned addresses."""
