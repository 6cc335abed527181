"""What is to be scheduled: task graphs, networks, devices, costs and the instance file."""
