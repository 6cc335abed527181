"""The machine in FLOW: what copies take of engines, of a link or a bus, and of the tasks beside them."""
