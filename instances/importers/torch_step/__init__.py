"""A whole training step of torch with its optimizer, recorded so that it can run again bit for bit."""
