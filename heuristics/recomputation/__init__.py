"""Tasks that run again: plans, rules and the search."""
