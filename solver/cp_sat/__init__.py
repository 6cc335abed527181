"""The interval model of the joint problem, for CP-SAT."""
