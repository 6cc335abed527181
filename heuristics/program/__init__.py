"""What every method builds schedules with: the program builder, its pool, and where blocks go."""
