"""Reports of sweeps and of executions."""
