"""Schedules executed: a program's operations on real streams, with real kernels at the planned addresses."""
