"""The program builder with which every method builds schedules, its pool, and the placement of blocks."""
