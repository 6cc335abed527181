"""Waits left out of valid schedules, forced through on the CPU backend: how often numbers come out wrong.

``python docs/scripts/forced_faults.py`` prints the table of docs/execution.md; ``--write FILE`` puts it
into the page, ``--cases N`` sets the number of cases and ``--seed N`` their seed.
"""

from __future__ import annotations

import argparse
import logging
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from random import Random

from pebbler.benchmark.output.markdown import markdown, publish
from pebbler.instances.instance import Instance
from pebbler.instances.workload import Workload
from pebbler.solver.solve import solve
from pebbler.validate.execution.cpu.backend import CpuBackend
from pebbler.validate.execution.data import initial
from pebbler.validate.execution.executor import Executor
from pebbler.validate.execution.faults import essential_waits, executions_until_damage
from pebbler.validate.execution.plan import plan
from pebbler.validate.execution.rebuild import rebuild
from pebbler.validate.execution.unlimited import unlimited
from pebbler.validate.schedule import Schedule

NETWORKS = (("lenet", 1), ("lenet", 2), ("cifar10_quick", 1), ("resnet56:depth=8", 1))
BUDGETS = ("1.0xMmin", "1.1xMmin", "1.3xMmin", "1.6xMmin")
METHODS = ("modnn", "vdnn-all-m", "vdnn-conv-m", "local-search")
EXECUTIONS = 5
"""Executions of a case, each with other delays."""
LONGEST_SECONDS = 0.004
"""Longest delay before a copy or a kernel."""
BEGIN, END = "<!-- begin faults -->\n", "<!-- end faults -->\n"

_log = logging.getLogger(__name__)


def schedules(seed: int) -> list[tuple[Instance, Schedule]]:
    """Return a schedule for every network, budget and method that gives one with waits that it needs."""
    found = []
    seen = set()
    for network, batch in NETWORKS:
        for budget in BUDGETS:
            instance = Workload(network, batch, "K40").instance(budget)
            for method in METHODS:
                schedule = solve(instance, method, time_limit=0.5, seed=seed).schedule
                if schedule is None or (network, batch, schedule.operations) in seen:
                    continue
                seen.add((network, batch, schedule.operations))
                found.append((instance, schedule))
    return found


def study(count: int, seed: int) -> dict[str, Counter[int | None]]:
    """Force random faults; per network, in which execution each first did damage (None: in none)."""
    rng = Random(seed)
    programs = [
        (instance, schedule, waits)
        for instance, schedule in schedules(seed)
        if (waits := essential_waits(instance, schedule))
    ]
    data = [
        initial(rebuild(instance).graph.network, rebuild(instance).batch, seed) for instance, _, _ in programs
    ]
    right = []
    for (instance, schedule, _), values in zip(programs, data, strict=True):
        roomy, program = unlimited(instance, schedule)
        with Executor(CpuBackend(), plan(roomy, program, rebuild(instance)), 1) as executor:
            executor.load(values)
            right.append(executor.run())
    found: dict[str, Counter[int | None]] = defaultdict(Counter)
    for case in range(count):
        which = rng.randrange(len(programs))
        instance, schedule, waits = programs[which]
        backends = [
            partial(CpuBackend, (LONGEST_SECONDS, EXECUTIONS * case + index)) for index in range(EXECUTIONS)
        ]
        wait = rng.choice(waits)
        first = executions_until_damage(instance, schedule, wait, backends, data[which], right[which])
        found[instance.name][first] += 1
        if case % 50 == 49:
            _log.info("%d of %d cases", case + 1, count)
    return found


def table(found: dict[str, Counter[int | None]]) -> str:
    """Return a row for each network and one for all, as Markdown."""
    total: Counter[int | None] = Counter()
    for counts in found.values():
        total.update(counts)
    rows = []
    for name, counts in [*sorted(found.items()), ("all", total)]:
        cases = counts.total()
        within = [
            sum(n for first, n in counts.items() if first and first <= most) for most in (1, EXECUTIONS)
        ]
        rows.append((name, str(cases), *(f"{n} ({n / cases:.0%})" for n in within)))
    header = ("instance", "cases", "damage in the first execution", f"in one of {EXECUTIONS}")
    return markdown(header, rows)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table, or put it into a page."""
    parser = argparse.ArgumentParser(prog="python docs/scripts/forced_faults.py", description=__doc__)
    parser.add_argument("--write", type=Path, metavar="FILE", help="the page to put the table into")
    parser.add_argument("--cases", type=int, metavar="N", default=600, help="default: 600")
    parser.add_argument("--seed", type=int, metavar="N", default=0, help="default: 0")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    publish(table(study(options.cases, options.seed)), options.write, BEGIN, END)


if __name__ == "__main__":
    main()
