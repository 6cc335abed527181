"""The best number of streams for a layer: GLP4NN's integer program."""
