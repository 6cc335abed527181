"""A batch over several GPUs: the machine and the workload."""
