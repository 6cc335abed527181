"""Run the command line with ``python -m pebbler``."""

import sys

from .cli import main

sys.exit(main())
