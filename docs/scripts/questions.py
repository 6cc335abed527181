"""Whether today's networks fit, and the least link that they need: answers, and how long they take.

``python docs/scripts/questions.py`` prints the tables of docs/fits.md and docs/frontier.md, and with
``--write docs`` it puts them into the pages. Each command runs in a process of its own, on two threads.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pebbler.benchmark.comparison.least import format_value
from pebbler.benchmark.output.machine import made_here
from pebbler.benchmark.output.markdown import markdown, publish
from pebbler.instances.errors import PebblerError

NETWORKS = (("resnet50", 256), ("gpt2", 16), ("vit_l16", 64))
"""Networks, each with a batch that does not fit a V100 in memory."""

FITS = "<!-- begin fits -->\n", "<!-- end fits -->\n"
LINKS = "<!-- begin links -->\n", "<!-- end links -->\n"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command printed as JSON, and the seconds that it took: on the clock, and of the processors."""

    found: Any
    wall: float
    processors: float

    @property
    def takes(self) -> tuple[str, str]:
        """Both times as cells."""
        return f"{self.wall:.0f} s", f"{self.processors:.0f} s"


def ask(*arguments: str) -> Answer:
    """Run a command of pebbler in a folder that is left afterwards.

    Raises
    ------
    PebblerError
        When it does not end with an answer.
    """
    words = [sys.executable, "-m", "pebbler", *arguments, "--json"]
    with tempfile.TemporaryDirectory() as folder:
        before, began = os.times(), time.monotonic()
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True)
        wall, after = time.monotonic() - began, os.times()
    if done.returncode not in (0, 1) or not done.stdout:
        raise PebblerError(
            f"pebbler {' '.join(arguments)} ended with {done.returncode}: {done.stderr.strip()}"
        )
    used = after.children_user + after.children_system - before.children_user - before.children_system
    return Answer(json.loads(done.stdout), wall, used)


def fits_row(network: str, batch: int, limit: str) -> tuple[str, ...]:
    """Ask whether a network fits: a cell for each way, with what it costs and the largest batch."""
    answer = ask("fits", network, *_asked(batch, limit))
    cells = []
    for row in answer.found["rows"]:
        largest, least = row["batches"]["largest_batch"], row["least_overhead"]
        cell = "no" if row["answer"] == "no" else "unknown"
        if row["answer"] == "yes":
            cell = f"{row['overhead']:.1%} (at least {least:.1%})"
        cells.append(f"{cell}; up to {largest or 'none'}")
    return f"{network}, {batch}", *cells, *answer.takes


def link_row(network: str, batch: int, limit: str) -> tuple[str, ...]:
    """Ask for the least link of a network: what is enough, and what is proven not to be."""
    question = ("--over", "link", "--overhead", "5%", "--budget", "14GiB", "-o", "frontier")
    answer = ask("frontier", network, *question, *_asked(batch, limit))
    sides = [answer.found[side] for side in ("least", "certified_impossible")]
    cells = ["none" if value is None else format_value("link", value) for value in sides]
    return f"{network}, {batch}", *cells, *answer.takes


def _asked(batch: int, limit: str) -> tuple[str, ...]:
    return "--batch", str(batch), "--device", "v100", "--workers", "2", "--time-limit", limit


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables, or put them into the pages of a folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path, metavar="DIR", help="where fits.md and frontier.md are")
    parser.add_argument("--time-limit", default="45s", metavar="T", help="of each command; default: 45s")
    options = parser.parse_args(arguments)
    limit, folder = options.time_limit, options.write
    header = ["network, batch", "in memory", "recomputation", "copies", "both", "takes", "processors"]
    rows = [fits_row(network, batch, limit) for network, batch in NETWORKS]
    publish(_table(header, rows), folder and folder / "fits.md", *FITS)
    header = ["network, batch", "enough", "not enough", "takes", "processors"]
    rows = [link_row(network, batch, limit) for network, batch in NETWORKS]
    publish(_table(header, rows), folder and folder / "frontier.md", *LINKS)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return f"{markdown(header, rows)}\n{made_here()}.\n"


if __name__ == "__main__":
    main()
