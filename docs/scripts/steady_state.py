"""What the first iteration says of the hundredth: both solved in the same memory, for docs/steady-state.md.

The first iteration may have its weights on the device at the start and leave them anywhere. An iteration of a
steady state leaves what it finds. ``python docs/scripts/steady_state.py`` prints the table, and with
``--write docs`` it puts it into the page.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from msgspec.structs import replace

from pebbler import Instance, Schedule, Workload, refine_bound, solve
from pebbler.benchmark.output.machine import made_here
from pebbler.benchmark.output.markdown import markdown, publish
from pebbler.instances.memory import ideal_ns
from pebbler.instances.units import format_size, format_time
from pebbler.validate.measures import carried_bytes

Memory = Literal["contiguous", "paged"]

CASES = (
    Workload("vgg16", 64, "v100", steady=True, optimizer="adam"),
    Workload("gpt2", 8, "rtx4090", steady=True, optimizer="adam"),
)
"""Networks whose weights and optimizer state are a good part of the memory."""

BUDGETS = ("50%", "70%")
"""Budgets of each."""

METHODS = ("modnn", "vdnn-dyn", "flow")
"""Methods, of which the shortest schedule counts."""

MARKS = "<!-- begin iterations -->\n", "<!-- end iterations -->\n"


def first_iteration(instance: Instance) -> Instance:
    """Return the iteration whose carried blocks begin on the device, and end anywhere."""
    blocks = (
        replace(block, initially="device") if block.initially == "carried" else block
        for block in instance.blocks
    )
    return replace(instance, name=f"{instance.name}-first", blocks=tuple(blocks))


def best(instance: Instance, memory: Memory, seconds: float) -> Schedule | None:
    """Return the shortest schedule of all methods; None where no method has one."""
    found = [solve(instance, method, memory=memory, time_limit=seconds).schedule for method in METHODS]
    return min(filter(None, found), key=lambda schedule: schedule.makespan_ns, default=None)


def row(workload: Workload, budget: str, memory: Memory, seconds: float) -> tuple[str, ...]:
    """Solve both iterations under a budget, and bound the steady state."""
    instance = workload.instance(budget)
    ideal = ideal_ns(instance)
    first, steady = (best(one, memory, seconds) for one in (first_iteration(instance), instance))
    name = f"{workload.name}, {workload.batch}, {format_size(instance.budget_bytes)} ({budget})"
    if first is None or steady is None:
        return name, memory, *["no schedule"] * 6
    if steady.makespan_ns < first.makespan_ns:  # what leaves all as it was is a first iteration, too
        first = steady
    shortest = steady.makespan_ns
    proven = refine_bound(instance, seconds, memory=memory, shortest_ns=shortest).certified_ns
    carried = sum(instance.blocks[d].bytes for d in instance.carried)
    return (
        name,
        memory,
        f"{format_time(first.makespan_ns)} ({_share(first.makespan_ns, ideal)})",
        f"{format_time(shortest)} ({_share(shortest, ideal)})",
        _share(shortest, first.makespan_ns),
        _share(proven, first.makespan_ns) if proven > first.makespan_ns else "nothing",
        _share(shortest, proven),
        f"{format_size(carried_bytes(steady))} of {format_size(carried)}",
    )


def _share(time: int, other: int) -> str:
    return f"{time / other - 1:+.1%}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table, or put it into the page of a folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path, metavar="DIR", help="where steady-state.md is")
    parser.add_argument(
        "--seconds", type=float, default=20.0, help="of each method, and of each bound; default: 20"
    )
    options = parser.parse_args(arguments)
    header = (
        "network, batch, budget",
        "memory",
        "first iteration (over the ideal)",
        "steady state (over the ideal)",
        "longer by",
        "proven longer by",
        "over the bound",
        "on the device",
    )
    models: tuple[Memory, ...] = ("contiguous", "paged")
    rows = [
        row(workload, budget, memory, options.seconds)
        for workload in CASES
        for budget in BUDGETS
        for memory in models
    ]
    folder = options.write
    publish(f"{markdown(header, rows)}\n{made_here()}.\n", folder and folder / "steady-state.md", *MARKS)


if __name__ == "__main__":
    main()
