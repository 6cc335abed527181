"""Exit statuses of the program."""

from __future__ import annotations

import signal

INTERRUPTED = 128 + signal.SIGINT
"""Exit status after Ctrl-C; after another signal it is 128 and its number, as in a shell."""
