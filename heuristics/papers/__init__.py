"""The policies of the papers, and of other systems, by rule."""
