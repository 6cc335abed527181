"""Time and memory that the largest instances take, step by step.

``python docs/scripts/footprint.py`` prints the table of docs/suites.md; ``--write FILE`` puts it into
the page. Each step runs in a process of its own, so that its peak is its own.
"""

from __future__ import annotations

import argparse
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from pebbler.benchmark.output.markdown import markdown, publish
from pebbler.heuristics.methods import Limits
from pebbler.heuristics.papers.vdnn import vdnn_all_m
from pebbler.instances.files import read_instance, write_instance
from pebbler.instances.suites.suite import find_suite, members
from pebbler.validate.check import check
from pebbler.validate.schedule import read_schedule, write_schedule

BEGIN, END = "<!-- begin footprint -->\n", "<!-- end footprint -->\n"
LARGEST = (
    ("papers", "resnet1517-b32-k40-11580mib"),
    ("scaling", "recurrent-100000-s0"),
    ("scaling", "resnet-blocks-3-876-4375-3-b32-k40-1.5xmmin"),
)
"""Suite and name of the instances that are measured."""


@dataclass(frozen=True, slots=True)
class _Case:
    """An instance of a suite, and the folder that its files are in."""

    suite: str
    name: str
    folder: Path

    @property
    def instance_file(self) -> Path:
        return self.folder / "x.instance.json"

    @property
    def schedule_file(self) -> Path:
        return self.folder / "x.schedule.json"

    def build(self) -> None:
        """Build the instance and write it."""
        (member,) = (m for m in members(find_suite(self.suite)) if m.name == self.name)
        write_instance(member.build(), self.instance_file)

    def read(self) -> None:
        """Read the instance."""
        read_instance(self.instance_file)

    def solve(self) -> None:
        """Read the instance, plan it as vDNN does, and write the schedule."""
        schedule = vdnn_all_m(read_instance(self.instance_file), Limits()).schedule
        assert schedule is not None
        write_schedule(schedule, self.schedule_file)

    def check(self) -> None:
        """Read the instance and the schedule, and check it."""
        instance = read_instance(self.instance_file)
        assert check(instance, read_schedule(self.schedule_file, instance)).valid


_STEPS: dict[str, Callable[[_Case], None]] = {
    "build and write": _Case.build,
    "read": _Case.read,
    "read, vdnn-all-m, write": _Case.solve,
    "read and check": _Case.check,
}


class Use(msgspec.Struct, frozen=True):
    """Wall time of a step, and the most memory that its process had, the interpreter included."""

    seconds: float
    mebibytes: int


def measure(suite: str, name: str) -> list[Use]:
    """Measure the steps on an instance, one after the other."""
    uses = []
    with tempfile.TemporaryDirectory() as folder:
        for step in _STEPS:
            command = [sys.executable, __file__, "--step", step, suite, name, folder]
            done = subprocess.run(command, capture_output=True, check=True)
            uses.append(msgspec.json.decode(done.stdout, type=Use))
    return uses


def _step(step: str, case: _Case) -> Use:
    started = time.perf_counter()
    _STEPS[step](case)
    seconds = time.perf_counter() - started
    return Use(round(seconds, 2), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)


def table() -> str:
    """The measurements as Markdown."""
    lines = [
        f"Python {platform.python_version()}, numpy {np.__version__}, msgspec {msgspec.__version__}.",
        "",
        "",
    ]
    rows = (
        [name, *(f"{use.seconds:.1f} s, {use.mebibytes} MiB" for use in measure(suite, name))]
        for suite, name in LARGEST
    )
    return "\n".join(lines) + markdown(("instance", *_STEPS), rows)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table, or put it into a page."""
    parser = argparse.ArgumentParser(prog="python docs/scripts/footprint.py", description=__doc__)
    parser.add_argument("--write", type=Path, metavar="FILE", help="the page to put the table into")
    parser.add_argument("--step", choices=_STEPS, help=argparse.SUPPRESS)
    parser.add_argument("case", nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.step is not None:
        suite, name, folder = options.case
        print(msgspec.json.encode(_step(options.step, _Case(suite, name, Path(folder)))).decode())
        return
    publish(table(), options.write, BEGIN, END)


if __name__ == "__main__":
    main()
