"""Run the command line with ``python -m pebbler``."""

import sys

from .process import program

sys.exit(program())
