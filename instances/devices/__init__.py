"""Devices and what work costs on them: the roofline model, kernels, occupancy."""
