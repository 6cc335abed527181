"""How many streams a layer wants: GLP4NN's integer program."""
