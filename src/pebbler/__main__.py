"""Run the command line with ``python -m pebbler``."""

from .process import program

program()
