"""Pack MiniMalloc's benchmark files, and put the table of results into a page.

``python docs/scripts/pack_minimalloc.py FOLDER`` prints the table; ``--write FILE`` puts it into the page.
"""

from __future__ import annotations

import argparse
import os
import platform
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from pebbler.benchmark.output.markdown import publish, row
from pebbler.instances.buffers import Buffer, read_buffers
from pebbler.solver.packing.pack import PackResult, pack

BEGIN, END = "<!-- table -->\n", "<!-- end of table -->"
CAPACITY = 1_048_576
TIME_LIMIT = 60.0


def table(folder: Path) -> str:
    """Pack every CSV file of a folder, at capacity and as low as possible, with one worker.

    Returns
    -------
    str
        A Markdown table, and a line on what it was measured with.
    """
    files = sorted(folder.glob("*.csv"))
    for file in files[:1]:
        pack(read_buffers(file), time_limit=TIME_LIMIT)  # Numba compiles now, and not in what is timed
    lines = ["| file | buffers | at capacity | s | lowest | lower bound | status | s |"]
    lines.append("| --- | ---: | --- | ---: | ---: | ---: | --- | ---: |")
    for file in files:
        buffers = read_buffers(file)
        fitting, fitting_seconds = _timed(buffers, CAPACITY)
        lowest, lowest_seconds = _timed(buffers, None)
        height = "none" if lowest.height is None else f"{lowest.height:,}"
        cells = (
            file.name.split(".")[0],
            str(len(buffers)),
            "no" if fitting.height is None else "fits",
            f"{fitting_seconds:.1f}",
            height,
            f"{lowest.lower_bound:,}",
            lowest.status,
            f"{lowest_seconds:.1f}",
        )
        lines.append(row(cells))
    tools = ", ".join(f"{name} {version(name)}" for name in ("numba", "numpy", "ortools"))
    machine = f"{platform.machine()}, {os.cpu_count()} cores, of which one is used"
    lines += ["", f"Python {platform.python_version()}, {tools}; {machine}. The limit was 60 s each.", ""]
    return "\n".join(lines)


def _timed(buffers: Sequence[Buffer], capacity: int | None) -> tuple[PackResult, float]:
    began = time.perf_counter()
    result = pack(buffers, capacity=capacity, time_limit=TIME_LIMIT)
    return result, time.perf_counter() - began


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table, or put it into a page."""
    parser = argparse.ArgumentParser(prog="python docs/scripts/pack_minimalloc.py", description=__doc__)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="where the benchmark's CSV files lie")
    parser.add_argument("--write", type=Path, metavar="FILE", help="the page to put the table into")
    options = parser.parse_args(arguments)
    publish(table(options.folder), options.write, BEGIN, END)


if __name__ == "__main__":
    main()
