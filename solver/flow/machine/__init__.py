"""The machine in FLOW: what copies take of engines, of a shared link and of the tasks beside them."""
