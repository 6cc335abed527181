"""What a schedule is and whether it holds: schedule, simulator, checker, symbolic replay."""
