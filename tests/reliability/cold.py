"""The study of first runs: what loading and compiling add to the time that is reported of a method.

``python -m tests.reliability.cold --write``, from the root of the repository, makes ``docs/data`` and the
table in docs/reliability.md anew; without ``--write`` it prints the table. Run it on a machine that does
nothing else.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from statistics import median

from pebbler import list_methods
from pebbler.heuristics.methods import find_method
from pebbler.instances.instance import Instance
from pebbler.instances.processes.child import Child
from pebbler.instances.workload import Workload

from .pages import write_section
from .timed import timed

SHARE = 0.2
"""By which share of the greater one, times may differ."""

LEAST = 0.005
"""Seconds by which they may differ in any case: Python takes longer for whatever it does the first time."""

LONGEST = 10.0
"""Seconds that a method gets: one that takes them all is not measured."""


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of a method, as they are reported: of its first call in a process, and of the second."""

    method: str
    cold: tuple[float, ...]
    warm: tuple[float, ...]
    ended: str

    @property
    def medians(self) -> tuple[float, float]:
        """Of the first calls, and of the second ones."""
        return median(self.cold), median(self.warm)

    @property
    def alike(self) -> bool:
        """Whether loading is in neither."""
        cold, warm = self.medians
        return abs(cold - warm) <= max(SHARE * max(cold, warm), LEAST)


def instance_for(method: str) -> Instance:
    """README's instance, as a comparison would give it to a method."""
    instance = Workload("vgg16", 256, "k40").instance("12GiB")
    transform = find_method(method).transform
    return instance if transform is None else transform(instance)


def study(methods: list[str], repeats: int) -> Iterator[Times]:
    """Call each method twice in a process of its own, and that several times, with the others in between."""
    calls: dict[str, list[tuple[float, float, str]]] = {method: [] for method in methods}
    for _ in range(repeats):
        for method, found in calls.items():
            if not found or found[-1][1] < LONGEST:
                found.append(twice(method))
    for method, found in calls.items():
        cold, warm, ended = zip(*found, strict=True)
        yield Times(method, cold, warm, ended[-1])


def twice(method: str) -> tuple[float, float, str]:
    """Seconds of a method's first and second call in a process, and how it ended."""
    instance = instance_for(method)
    seconds = []
    with Child() as child:
        for _ in range(2):
            child.start(timed, instance, method, "contiguous", LONGEST)
            answer = child.result()
            assert isinstance(answer, tuple)
            took, ended = answer
            seconds.append(took)
    return seconds[0], seconds[1], ended


def main() -> int:
    """Run the study."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--methods", nargs="*", default=[method.name for method in list_methods()])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--write", action="store_true", help="write docs/data and docs/reliability.md")
    arguments = parser.parse_args()
    runs = list(study(arguments.methods, arguments.repeats))
    rows = []
    for run in runs:
        cold, warm = run.medians
        word = "ok    " if run.alike else "DIFFER"
        print(f"{word} {run.method:18} {cold:.4f} s, {warm:.4f} s; {run.ended[:80]}", file=sys.stderr)
        if 0.0 < warm < LONGEST:
            verdict = "yes" if run.alike else "**no**"
            rows.append((run.method, f"{cold:.3f} s", f"{warm:.3f} s", f"{cold / warm - 1:+.0%}", verdict))
    header = ("method", "first call", "second call", "difference", "within the limits")
    write_section("cold", header, rows, [asdict(run) for run in runs], write=arguments.write)
    return 0 if all(run.alike for run in runs) else 1


if __name__ == "__main__":
    sys.exit(main())
