"""What the tests take, and which take longest: ``python -m tests.reliability.suite --write``.

It runs README's test command and writes its time on the wall, its processor time and its ten slowest tests to
docs/data and docs/reliability.md; without ``--write`` it prints them. The machine should do nothing else.
"""

from __future__ import annotations

import argparse
import re
import resource
import subprocess
import sys
import time
from collections.abc import Sequence

from .pages import DOCS, write_section

SLOWEST = 10


def slowest(output: str) -> list[tuple[str, float]]:
    """Tests, without their parts before and after, and their seconds, as pytest prints them."""
    rows = re.findall(r"^([\d.]+)s call +(\S+)", output, re.MULTILINE)
    return [(test, float(seconds)) for seconds, test in rows]


def measure(arguments: Sequence[str]) -> tuple[float, float, str]:
    """Seconds on the wall, seconds of the processor, and the output of pytest, which must pass."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *arguments], cwd=DOCS.parent, stdout=subprocess.PIPE, text=True
    )
    wall, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        sys.exit(done.stdout)
    return wall, after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime, done.stdout


def main() -> None:
    """Run the tests, and tell."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write docs/data and docs/reliability.md")
    arguments = parser.parse_args()
    wall, processor, output = measure(["-n", "2", f"--durations={3 * SLOWEST}", "--durations-min=0"])
    tests = slowest(output)[:SLOWEST]
    rows = [(f"`{test}`", f"{seconds:.1f} s") for test, seconds in tests]
    rows.append(("**all, with two workers**", f"{wall:.0f} s; {processor:.0f} s of the processors"))
    runs = [{"test": test, "seconds": seconds} for test, seconds in tests]
    runs.append({"test": "all", "seconds": wall, "processor_seconds": processor})
    write_section("suite", ("test", "takes"), rows, runs, write=arguments.write)


if __name__ == "__main__":
    main()
