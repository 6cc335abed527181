"""The largest batches of Layrub's networks.

``python docs/scripts/largest_batch.py`` prints the table of docs/frontier.md, and ``--write FILE`` puts it
into the page.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

from pebbler.benchmark.comparison.largest_batch import (
    largest_batch,
)
from pebbler.benchmark.output.markdown import markdown, publish
from pebbler.instances.workload import Workload

BEGIN, END = "<!-- begin largest-batch -->\n", "<!-- end largest-batch -->\n"


LAYRUB = (("alexnet", 2100), ("vgg16", 240), ("resnet34", 416), ("resnet50", 272))
"""Networks of Layrub's Table 7 on ImageNet, and the largest batch that it prints for a K40M."""


def rows(method: str, budget_bytes: int, overheads: Sequence[float | None]) -> Iterator[tuple[str, ...]]:
    """For each network of Layrub's Table 7, what it prints and what a method reaches here."""
    for network, printed in LAYRUB:
        workload = Workload(network, 1, "k40")
        cells = [network, str(printed)]
        for overhead in overheads:
            found = largest_batch(workload, budget_bytes, method, overhead=overhead)
            cells += [str(found.largest_batch), str(found.excluded_from)]
        yield tuple(cells)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table, or put it into a page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path, metavar="FILE", help="the page")
    options = parser.parse_args(arguments)
    overheads = (None, 0.25)
    header = ["network", "printed"]
    for overhead in overheads:
        header += ["any overhead" if overhead is None else f"{overhead:.0%} overhead", "impossible"]
    publish(markdown(header, rows("modnn", 11580 * 2**20, overheads)), options.write, BEGIN, END)


if __name__ == "__main__":
    main()
