"""The study of time limits: every method, on instances that are large in one way or another.

``python -m tests.reliability.limits --write``, from the root of the repository, makes ``docs/data`` and the
table in docs/reliability.md anew; without ``--write`` it prints the table.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from tempfile import TemporaryDirectory
from threading import Timer

import numpy as np

from pebbler import list_methods
from pebbler.instances.gpus.workload import cluster_instances, several_gpus
from pebbler.instances.instance import Instance
from pebbler.instances.processes.child import Child, ChildEnded
from pebbler.instances.suites.generators import Knobs, generate
from pebbler.instances.suites.shapes import Layered, Recurrent, Residual
from pebbler.instances.transforms import split_parts
from pebbler.instances.workload import Workload

from .interrupts import PEBBLER
from .pages import write_section
from .timed import LIMIT, timed

ALLOWED = 2.0
"""Seconds past the limit that are allowed."""

README = ("compare", "vgg16", "--batch", "256", "--device", "k40", "--budget", "12GiB")

PATIENCE = 60.0
"""Seconds after which a run is ended that goes on in spite of its limit."""


def drawn(steps: int, **knobs: int) -> Instance:
    """An instance of eight tasks a step."""
    return generate(
        f"recurrent-{8 * steps}",
        Recurrent(4, steps),
        Knobs(slack_percent=20, **knobs),
        np.random.default_rng(0),
    )


def _residual(blocks: int) -> Instance:
    knobs = Knobs(slack_percent=20)
    return generate(f"residual-{blocks}", Residual(blocks, 4), knobs, np.random.default_rng(0))


def _layered(size: int) -> Instance:
    """A graph as those of MOCCASIN: everything may run again, nothing is copied, no backward pass."""
    knobs = Knobs(slack_percent=20, recomputable_percent=100, transfer_percent=0, backward=False)
    return generate(f"layered-{size}", Layered(size, 20), knobs, np.random.default_rng(0))


def _cluster(gpus: int) -> Instance:
    workload = Workload("resnet152", 64, "k40")
    return cluster_instances(workload, several_gpus(workload, gpus), "1.2xMmin")[-1]


def _parts() -> Instance:
    return split_parts(Workload("resnet152", 64, "k40").instance("1.1xMmin"), 4 << 20)


KINDS: dict[str, Callable[[], Instance]] = {
    "10^4 tasks": partial(drawn, 1250),
    "10^4 tasks, residual": partial(_residual, 1000),
    "10^5 tasks": partial(drawn, 12500),
    "10^3 tasks may run again": partial(drawn, 125, recomputable_percent=100),
    "10^4 tasks may run again": partial(drawn, 1250, recomputable_percent=100),
    "240 tasks, no copies": partial(_layered, 240),
    "2 GPUs": partial(_cluster, 2),
    "4 GPUs": partial(_cluster, 4),
    "parts": _parts,
}
"""Instances, by what is large in them."""

COMPARE = "the end of compare"
"""The other kind: what README's command takes from the row of its only method, when the limit for its bound
begins, to its end."""


@dataclass(frozen=True, slots=True)
class Run:
    """A method on an instance: seconds past its limit, by its own clock and by that on the wall."""

    kind: str
    method: str
    past: float
    wall: float
    ended: str

    @property
    def kept(self) -> bool:
        """Whether the limit held."""
        return self.past <= ALLOWED


def study(kinds: list[str], methods: list[str], memory: str = "contiguous") -> Iterator[Run]:
    """Run all methods on all kinds of instances, each in a process of its own."""
    for kind in kinds:
        if kind == COMPARE:
            yield from (compared(method, memory) for method in methods)
            continue
        instance = KINDS[kind]()
        for method in methods:
            began = time.monotonic()
            with Child() as child:
                child.start(timed, instance, method, memory, wall_limit=LIMIT + PATIENCE)
                try:
                    answer = child.result()
                    assert isinstance(answer, tuple)
                    seconds, ended = answer
                except ChildEnded as error:
                    seconds, ended = LIMIT + PATIENCE, str(error)
            yield Run(kind, method, max(seconds - LIMIT, 0.0), time.monotonic() - began, ended)


def compared(method: str, memory: str, limit: float = LIMIT) -> Run:
    """Compare one method, and measure from its row on."""
    began = time.monotonic()
    row, shown = "no row", None
    with TemporaryDirectory() as folder:
        command = [*PEBBLER, *README, "--methods", method, "--memory", memory]
        command += ["--time-limit", f"{limit}s", "--verbose", "--out", folder]
        with subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stderr is not None
            patience = Timer(2 * limit + PATIENCE, process.kill)
            patience.start()
            for line in process.stderr:
                if line.startswith(f"{method}: "):
                    row, shown = line.strip(), time.monotonic()
            patience.cancel()
    ended = time.monotonic()
    past = PATIENCE if shown is None else max(ended - shown - limit, 0.0)
    return Run(COMPARE, method, past, ended - began, row)


def main() -> int:
    """Run the study."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kinds", nargs="*", default=[*KINDS, COMPARE], choices=[*KINDS, COMPARE])
    parser.add_argument("--methods", nargs="*", default=[method.name for method in list_methods()])
    parser.add_argument("--memory", default="contiguous", choices=("contiguous", "paged"))
    parser.add_argument("--write", action="store_true", help="write docs/data and docs/reliability.md")
    arguments = parser.parse_args()
    runs = []
    for run in study(arguments.kinds, arguments.methods, arguments.memory):
        word = "ok  " if run.kept else "PAST"
        line = f"{word} {run.kind:26} {run.method:18} +{run.past:5.1f} s, {run.wall:5.1f} s in all"
        print(f"{line}  {run.ended[:90]}", file=sys.stderr, flush=True)
        runs.append(run)
    rows = []
    for kind in arguments.kinds:
        of_kind = [run for run in runs if run.kind == kind]
        worst = max(of_kind, key=lambda run: run.past)
        failed = ", ".join(run.method for run in of_kind if not run.kept) or "none"
        rows.append((kind, str(len(of_kind)), f"{worst.past:.1f} s ({worst.method})", failed))
    header = ("instance", "methods", "longest past the limit", f"past it by more than {ALLOWED:.0f} s")
    write_section("limits", header, rows, [asdict(run) for run in runs], write=arguments.write)
    return 0 if all(run.kept for run in runs) else 1


if __name__ == "__main__":
    sys.exit(main())
