"""Linear and integer programs: the model, the solvers, and the checks of their answers."""
