"""The study: sweeps, what is taken from the pages on the papers, and the text that is built from both."""
