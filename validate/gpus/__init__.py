"""Schedules for several GPUs: the bus, the program, the simulator and the checker."""
