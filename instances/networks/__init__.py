"""Networks: layers, the zoo, and the task graph that a network becomes."""
