"""Linear and integer programs: the model, the solvers, and what is believed of their answers."""
