"""Other programs, run from a process that is killed with all that it has started."""

from __future__ import annotations

import subprocess


def run(words: list[str], environment: dict[str, str]) -> int:
    """Run a program in this process group until it ends, and return its exit status; it reads no input.

    It is for a `Child`, which passes over what else a program does. This module imports little, so that such
    a process is there soon.
    """
    return subprocess.run(words, env=environment, stdin=subprocess.DEVNULL, check=False).returncode
