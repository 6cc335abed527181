"""Local search: decisions, their simulation with addresses, and the moves."""
