"""Profiling: tasks, copies, launches and mappings, measured on a device."""
