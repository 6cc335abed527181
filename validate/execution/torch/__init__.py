"""The torch backend: recorded training steps, executed with torch's own operators at planned addresses."""
