"""Checksums of the instance files of every suite, which a release fixes.

``python docs/scripts/checksums.py`` builds all suites, in a minute or so, and ends with an error where a file
differs from what docs/data/suites.sha256 has; ``--write`` writes that file anew. ``sha256sum --check`` reads
it in a folder where ``pebbler generate SUITE -o SUITE`` made the suites.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from pebbler.instances.files import checksum, write_atomically
from pebbler.instances.suites.suite import find_suite, list_suites, members

PLACE = Path("docs", "data", "suites.sha256")


def lines() -> list[str]:
    """Build every suite, and return a line for each instance: the checksum and the file."""
    return [
        f"{checksum(member.build())}  {suite}/{member.name}.instance.json\n"
        for suite in list_suites()
        for member in members(find_suite(suite))
    ]


def main() -> int:
    """Compare or write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"write {PLACE} anew")
    arguments = parser.parse_args()
    found = lines()
    if arguments.write:
        write_atomically(PLACE, "".join(found).encode())
        return 0
    recorded = {*PLACE.read_text(encoding="utf-8").splitlines(keepends=True)}
    other = {line.split()[1] for line in {*found} ^ recorded}
    if other:
        print(f"{len(other)} files of suites are not as recorded, {min(other)} among them", file=sys.stderr)
    return 1 if other else 0


if __name__ == "__main__":
    sys.exit(main())
