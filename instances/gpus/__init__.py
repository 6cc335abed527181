"""A batch on several GPUs: the machine and the workload."""
