"""What a profile has: tasks, copies, launches and mappings, measured on a device."""
