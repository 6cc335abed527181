"""Hold the cost model's H100 against what an H100 measured: tasks of three networks.

``python docs/scripts/h100.py`` reads ``docs/data/gpu`` and writes the table to ``docs/costs.md``. Nothing of
the model was fitted to these times.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from math import log
from pathlib import Path

from pebbler.benchmark.output.markdown import markdown, publish
from pebbler.instances.instance import Instance
from pebbler.instances.profile import read_profile
from pebbler.instances.workload import Workload

DATA = Path("docs/data/gpu")
PAGE = Path("docs/costs.md")
MARKS = "<!-- begin h100 -->\n", "<!-- end of h100 -->"
NETWORKS = (("alexnet", 128), ("vgg16", 128), ("resnet50", 128))
HEADER = ("network", "tasks", "number", "measured", "model", "measured / model", "mean of abs(ln)")


def fastest(instance: Instance) -> dict[str, int]:
    """Return the time of each task with its fastest algorithm, in nanoseconds."""
    return {task.name: min(one.duration_ns for one in task.algorithms) for task in instance.tasks}


def rows() -> Iterator[list[str]]:
    """Return a row for each pass of the convolutions of a network, for its other tasks, and for all."""
    for network, batch in NETWORKS:
        profile = read_profile(DATA / f"{network}-{batch}-profile.json")
        measured = fastest(Workload(network, batch, profile.machine.device, profile=profile).round(batch, 1))
        modelled = Workload(network, batch, "H100").round(batch, 1)
        model = fastest(modelled)
        groups: dict[str, list[str]] = defaultdict(list)
        for task in modelled.tasks:
            kind = (
                f"convolutions, {task.name.partition('(')[0]}" if len(task.algorithms) > 1 else "all others"
            )
            groups[kind].append(task.name)
        groups["all"] = list(model)
        for kind, names in groups.items():
            ours, theirs = (sum(times[name] for name in names) for times in (measured, model))
            apart = sum(abs(log(measured[name] / model[name])) for name in names) / len(names)
            yield [
                f"{network}, batch {batch}",
                kind,
                str(len(names)),
                f"{ours / 1e6:.2f} ms",
                f"{theirs / 1e6:.2f} ms",
                f"{ours / theirs:.2f}",
                f"{apart:.2f}",
            ]


if __name__ == "__main__":
    publish(markdown(HEADER, list(rows())), PAGE, *MARKS)
