"""Checkpointing of a chain by dynamic programming, set beside the integer program of ``checkmate``.

The programme is that of rotor (Beaumont et al., 2019; before it Griewank and Walther, 2000), on chains whose
backward steps read the input of their layer. What it stores it keeps until its last use (persistence): where
all activations have one size, and all gradients, nothing is lost by that.

``python docs/scripts/checkpointing.py`` prints the tables of docs/recomputation.md, and ``--write FILE``
puts them into the page.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from random import Random

from pebbler.benchmark.output.markdown import markdown, publish
from pebbler.instances.instance import Algorithm, Block, Instance, Task
from pebbler.instances.memory import least_budget, unlimited_peak, with_budget
from pebbler.instances.suites.tiny import tiny_instance, without_copies
from pebbler.solver.exhaustive.brute_force import brute_force
from pebbler.solver.solve import solve

LENGTHS = (5, 10, 15, 19)
"""Layers: a chain of L layers has 2 L + 1 tasks."""

TINY = 400
"""Tiny instances, each at several budgets."""

BEGIN, END = "<!-- begin checkpointing -->\n", "<!-- end checkpointing -->\n"
LIMIT = 60.0
"""Seconds for the integer program at a budget."""


def training_chain(
    forward: Sequence[int], backward: Sequence[int], activation: int, gradient: int
) -> Instance:
    """A chain of layers without copies, under a budget of 0.

    Layer k runs ``forward[k]`` ns from Y(k) to Y(k+1), and ``backward[k]`` ns from Y(k) and D(k+1) to D(k);
    the loss, of 1 ns, makes the last D from the last Y. Y(0) is there from the start and cannot be made
    again; the backward step of the first layer makes nothing that anybody reads.
    """
    count = len(forward)
    blocks = [
        Block(
            name=f"Y({k})",
            bytes=activation,
            offload_ns=None,
            prefetch_ns=None,
            initially="absent" if k else "device",
        )
        for k in range(count + 1)
    ]
    blocks += [
        Block(name=f"D({k})", bytes=gradient, offload_ns=None, prefetch_ns=None) for k in range(1, count + 1)
    ]

    def task(name: str, ns: int, reads: tuple[int, ...], writes: tuple[int, ...], again: bool) -> Task:
        only = Algorithm(name="only", duration_ns=ns, workspace_bytes=0)
        return Task(name=name, inputs=reads, outputs=writes, algorithms=(only,), recomputable=again)

    tasks = [task(f"F({k})", forward[k], (k,), (k + 1,), True) for k in range(count)]
    tasks.append(task("loss", 1, (count,), (2 * count,), False))
    tasks += [
        task(f"B({k})", backward[k], (k, count + k + 1), (count + k,) if k else (), False)
        for k in reversed(range(count))
    ]
    return Instance(
        name=f"chain-{count}",
        engines="duplex",
        budget_bytes=0,
        resident_bytes=0,
        alignment_bytes=1,
        blocks=tuple(blocks),
        tasks=tuple(tasks),
    )


def chain_optimum(
    forward: Sequence[int], backward: Sequence[int], activation: int, gradient: int, budget: int
) -> float:
    """Least time of such a chain under a budget, by dynamic programming; infinite where there is none."""
    count = len(forward)
    before = [0]
    for ns in forward:
        before.append(before[-1] + ns)

    def advanced(i: int, s: int, room: int) -> float:
        """Time from Y(i), which stays, to Y(s) in some room."""
        wanted = activation if s == i + 1 else 2 * activation
        return before[s] - before[i] if wanted <= room else math.inf

    @cache
    def first(i: int, room: int) -> float:
        """Time from Y(i), beside which there is some room, to the loss and back to D(i)."""
        if i == count:
            return 1 if gradient <= room else math.inf
        return min(
            advanced(i, s, room) + first(s, room - activation) + back(i, s, room)
            for s in range(i + 1, count + 1)
        )

    @cache
    def back(i: int, j: int, room: int) -> float:
        """Time from Y(i) and D(j), which is in the room, to D(i)."""
        if j == i + 1:
            return backward[i] if gradient * (2 if i else 1) <= room else math.inf
        return min(
            advanced(i, s, room - gradient) + back(s, j, room - activation) + back(i, s, room)
            for s in range(i + 1, j)
        )

    return first(0, budget - activation) if budget >= activation else math.inf


def random_chain(count: int, seed: int) -> tuple[list[int], list[int]]:
    """Times of layers, forward and backward: from 1 to 9 ns, backward about twice as long."""
    rng = Random(seed)
    forward = [rng.randint(1, 9) for _ in range(count)]
    return forward, [2 * ns + rng.randint(0, 2) for ns in forward]


def table(lengths: Sequence[int]) -> str:
    """Optima by both, budget by budget, in units of one activation; gradients have the same size."""
    rows = []
    for count in lengths:
        forward, backward = random_chain(count, count)
        chain = training_chain(forward, backward, 1, 1)
        equal = solved = 0
        seconds = []
        budgets = range(least_budget(chain), unlimited_peak(chain) + 1)
        for budget in budgets:
            optimum = chain_optimum(forward, backward, 1, 1, budget)
            began = time.perf_counter()
            result = solve(with_budget(chain, budget), "checkmate", time_limit=LIMIT)
            seconds.append(time.perf_counter() - began)
            solved += result.makespan_ns is not None
            equal += result.makespan_ns == optimum or (result.makespan_ns is None and optimum == math.inf)
        rows.append(
            (
                str(len(chain.tasks)),
                f"{budgets[0]} to {budgets[-1]}",
                str(len(budgets)),
                str(solved),
                str(equal),
                f"{sorted(seconds)[len(seconds) // 2]:.2f} s",
                f"{max(seconds):.2f} s",
            )
        )
    header = ("tasks", "budgets", "number", "with a schedule", "equal to the programme", "median", "longest")
    return markdown(header, rows)


def tiny_table(count: int) -> str:
    """Bound, exhaustive search and schedule on tiny instances without copies, at every fourth byte of budget.

    Raises
    ------
    AssertionError
        When they are not in this order, or only one of search and program has a schedule.
    """
    limited = [
        with_budget(instance, budget)
        for instance in map(without_copies, map(tiny_instance, range(count)))
        for budget in range(least_budget(instance), unlimited_peak(instance) + 1, 4)
    ]
    solved = again = equal = met = 0
    for instance in limited:
        optimum, result = brute_force(instance, "divisible"), solve(instance, "checkmate", time_limit=LIMIT)
        if optimum is None or result.makespan_ns is None or result.schedule is None:
            assert optimum is None, f"{instance.name} at {instance.budget_bytes}: {result.stopped_by}"
            assert result.makespan_ns is None, f"{instance.name} at {instance.budget_bytes}"
            continue
        assert result.lower_bound_ns <= optimum.makespan_ns <= result.makespan_ns, instance.name
        solved += 1
        again += len(result.schedule.operations) > len(instance.tasks)
        equal += result.makespan_ns == optimum.makespan_ns
        met += result.lower_bound_ns == optimum.makespan_ns
    header = (
        "instances",
        "with budgets",
        "feasible",
        "tasks run again",
        "schedule = search",
        "bound = search",
    )
    return markdown(header, [tuple(map(str, (count, len(limited), solved, again, equal, met)))])


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables, or put them into a page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path, metavar="FILE", help="the page")
    options = parser.parse_args(arguments)
    publish(table(LENGTHS) + "\n" + tiny_table(TINY), options.write, BEGIN, END)


if __name__ == "__main__":
    main()
