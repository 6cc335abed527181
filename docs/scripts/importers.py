"""Time and memory that it takes to make an instance of a torch model.

``python docs/scripts/importers.py`` prints the table of docs/importers.md; ``--write FILE`` puts it into
the page. Needs torch.
"""

from __future__ import annotations

import argparse
import platform
import resource
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path

from pebbler.benchmark.output.markdown import publish, row
from pebbler.instances.importers.torch_workload import TorchWorkload, find_step
from pebbler.instances.memory import least_budget, unlimited_peak
from pebbler.instances.units import format_size

MODELS = (("resnet50", 256), ("gpt2", 8), ("gpt2", 256), ("vit_l", 32), ("vit_l", 256))
"""Functions of `torch_models`, and batches."""

BEGIN, END = "<!-- begin importers -->\n", "<!-- end importers -->\n"


@dataclass(frozen=True, slots=True)
class Point:
    """One measurement.

    Attributes
    ----------
    tasks, blocks
        Of the instance.
    peak_bytes, least_bytes
        Peak without a limit, and least budget.
    seconds
        Time by the clock, the import of torch included.
    used_bytes
        Most memory that the process took.
    """

    tasks: int
    blocks: int
    peak_bytes: int
    least_bytes: int
    seconds: float
    used_bytes: int


def measure(model: str, batch: int) -> Point:
    """Make the instance of a model on a V100; the memory is that of the whole process so far."""
    started = time.perf_counter()
    make_step = find_step(f"pebbler.benchmark.gpu.torch_models:{model}")
    instance = TorchWorkload(model, batch, "v100", make_step=make_step).instance(0, check_budget=False)
    seconds = time.perf_counter() - started
    return Point(
        tasks=len(instance.tasks),
        blocks=len(instance.blocks),
        peak_bytes=unlimited_peak(instance),
        least_bytes=least_budget(instance),
        seconds=seconds,
        used_bytes=1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
    )


def table() -> str:
    """Return the measurements as Markdown, each made in a process of its own."""
    lines = [
        f"Python {platform.python_version()}, torch {version('torch')}, {platform.machine()}.",
        "",
        "| model | batch | tasks | blocks | peak without a limit | least budget | time | memory |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as pool:
        for model, batch in MODELS:
            point = pool.submit(measure, model, batch).result()
            cells = (
                f"`{model}`",
                str(batch),
                str(point.tasks),
                str(point.blocks),
                format_size(point.peak_bytes),
                format_size(point.least_bytes),
                f"{point.seconds:.1f} s",
                format_size(point.used_bytes),
            )
            lines.append(row(cells))
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table, or put it into a page."""
    parser = argparse.ArgumentParser(prog="python docs/scripts/importers.py", description=__doc__)
    parser.add_argument("--write", type=Path, metavar="FILE", help="the page to put the table into")
    options = parser.parse_args(arguments)
    publish(table(), options.write, BEGIN, END)


if __name__ == "__main__":
    main()
