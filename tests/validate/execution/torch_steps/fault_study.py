"""The fault study of torch steps: each wait that a program needs is left out, and what was awaited is late.

A wait is an operation's for another one, or that of a release for one of several operations. The checker
refuses a program without it, each time. The symbolic replay says whether data is damaged where the awaited
operation is late; then the step is executed like that, and its loss, parameters, states and the
generator are compared with those of a step that waits.

``python -m tests.validate.execution.torch_steps.fault_study --page docs/torch.md``, from the root of the
repository in an environment with torch, puts the table into the page; without ``--page`` it prints it.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import torch
from msgspec.structs import replace

import pebbler.torch
from pebbler import solve
from pebbler.benchmark.output.machine import origin
from pebbler.benchmark.output.markdown import markdown, publish
from pebbler.instances.memory import with_budget
from pebbler.torch import TrainingPlan
from pebbler.validate.check import check
from pebbler.validate.execution.device import DeviceError
from pebbler.validate.replay.durations import own_durations
from pebbler.validate.replay.machine import replay
from pebbler.validate.schedule import Schedule

from .models import Made, adamw, cnn, gpt, lstm, noisy, wide
from .training import BATCH, Make, are_equal, eager_step, executor_of, made_by, state_of


def pages(batch: int) -> Made:
    """Feature maps of a page and more, and an optimizer for which small gradients count."""
    module, step, inputs, _ = wide(batch)
    return module, step, inputs, adamw(module)


PROGRAMS: tuple[tuple[Make, str, dict[str, Any]], ...] = (
    (noisy, "1.2xMmin", {"method": "modnn"}),
    (gpt, "1.2xMmin", {"method": "modnn"}),
    (cnn, "1.1xMmin", {"method": "modnn"}),
    (lstm, "1.1xMmin", {"method": "modnn"}),
    (noisy, "1.2xMmin", {"method": "flow-recompute", "recompute": True, "link": "0.3GB/s"}),
    (pages, "40MiB", {"method": "modnn", "memory": "paged"}),
)
"""Model, budget, and how it is planned."""

DURATION_NS = 200_000
"""Of every operator, so that programs are the same each time."""

CLIP = 1e-5
"""So small that every gradient is scaled: times 1, a lost factor would not show."""

LATE_NS = (100_000_000, 900_000_000)
"""For how long the stream of the awaited operation pauses before it: the longer, if the shorter does not
show, since a machine that is busy with something else may hold the other streams, too.
"""

BEGIN, END = "<!-- begin faults -->\n", "<!-- end of faults -->\n"


@dataclass(frozen=True, slots=True)
class Omission:
    """A wait that a program is to lack: what is late without it, and the program.

    Attributes
    ----------
    late
        Id of the awaited operation.
    waiting
        Id of the operation that waits; None: the release of a residence does.
    schedule
        The program without the wait.
    """

    late: int
    waiting: int | None
    schedule: Schedule


@dataclass(slots=True)
class Tally:
    """What became of the waits of a program.

    Attributes
    ----------
    waits
        Its waits: those of operations, and those of releases that wait for several.
    tried
        Those that were left out, drawn at random.
    refused
        Those of the tried ones without which the checker refuses the program; the others follow from the
        rest.
    damaged
        Those without which the replay finds damage; the checker refuses each of them.
    shown
        Those of the damaging ones without which the step had other bits.
    hidden
        The others of these.
    """

    waits: int = 0
    tried: int = 0
    refused: int = 0
    damaged: int = 0
    shown: int = 0
    hidden: list[Omission] = field(default_factory=list)


def program(make: Make, budget: str, options: dict[str, Any]) -> TrainingPlan:
    """A step within a budget; the same each time, for all operators take as long."""
    torch.manual_seed(3)
    free = pebbler.torch.plan(
        make, batch=BATCH, budget="4GiB", clip=CLIP, **options | {"method": "network-wide"}
    )
    tasks = tuple(
        replace(task, algorithms=tuple(replace(one, duration_ns=DURATION_NS) for one in task.algorithms))
        for task in free.instance.tasks
    )
    instance = with_budget(replace(free.instance, tasks=tasks), budget)
    result = solve(instance, options["method"], memory=options.get("memory", "contiguous"), time_limit=10.0)
    assert result.schedule is not None, result.stopped_by
    return dataclasses.replace(free, instance=instance, result=result)


def omissions(schedule: Schedule) -> Iterator[Omission]:
    """Leave out each wait of a program alone."""
    for i, operation in enumerate(schedule.operations):
        for late in operation.after:
            operations = list(schedule.operations)
            operations[i] = replace(operation, after=tuple(one for one in operation.after if one != late))
            yield Omission(late, operation.id, replace(schedule, operations=tuple(operations)))
    for i, residence in enumerate(schedule.residences):
        for late in residence.released_after if len(residence.released_after) > 1 else ():
            rest = tuple(one for one in residence.released_after if one != late)
            residences = list(schedule.residences)
            residences[i] = replace(residence, released_after=rest)
            yield Omission(late, None, replace(schedule, residences=tuple(residences)))


def is_refused(plan: TrainingPlan, omission: Omission) -> bool:
    """Whether the checker refuses the program for more than its times, which are others in any case."""
    return any("simulated" not in reason for reason in check(plan.instance, omission.schedule).reasons)


def is_damaged(plan: TrainingPlan, omission: Omission) -> bool:
    """Whether the replay finds damage in the first round, where what was awaited takes longest."""
    durations = own_durations(plan.instance, omission.schedule)
    position = next(
        i for i, operation in enumerate(omission.schedule.operations) if operation.id == omission.late
    )
    durations[position] += 1000 * sum(durations)
    faults = replay(plan.instance, omission.schedule, durations, Random(0))
    return any(fault.kind == "data" and "second round" not in fault.text for fault in faults)


def after_a_step(make: Make, plan: TrainingPlan, **options: Any) -> list[Any]:
    """Everything that a step leaves, and every copy with which the next one may begin.

    A step of eager torch comes before, for what is 0 stays 0 whatever it is multiplied by.
    """
    made = made_by(make)
    eager_step(made)(*made[2])
    torch.manual_seed(7)
    carried = {plan.instance.blocks[d].tensor or plan.instance.blocks[d].name for d in plan.instance.carried}
    with executor_of(plan, made, poison=True, **options) as step:
        loss = step(*made[2])
        places = [(load.place, load.bytes) for load in step.plan.loads if load.tensor in carried]
        copies = [torch.from_numpy(step.backend.read(step.address(place), size)) for place, size in places]
        return [loss, *copies, *state_of(made)]


def shows(make: Make, plan: TrainingPlan, omission: Omission, wanted: list[Any]) -> bool:
    """Whether a step without the wait has other bits, or fails on them, where what was awaited is late."""
    without = dataclasses.replace(plan, result=dataclasses.replace(plan.result, schedule=omission.schedule))
    for late in LATE_NS:
        try:
            if not are_equal(after_a_step(make, without, late_ns={omission.late: late}), wanted):
                return True
        except DeviceError:  # such as a label that is none
            return True
    return False


def study(make: Make, plan: TrainingPlan, cases: int, seed: int = 0) -> Tally:
    """Leave out so many waits of a program, drawn at random.

    The checker must refuse the program without each wait whose lack does damage in the replay.
    """
    everything = list(omissions(plan.schedule))
    tally = Tally(waits=len(everything))
    wanted = after_a_step(make, plan)
    for omission in Random(seed).sample(everything, min(cases, len(everything))):
        tally.tried += 1
        refused, damaged = is_refused(plan, omission), is_damaged(plan, omission)
        assert refused or not damaged, f"the checker takes {omission.waiting} without {omission.late}"
        tally.refused += refused
        tally.damaged += damaged
        if damaged and shows(make, plan, omission, wanted):
            tally.shown += 1
        elif damaged:
            tally.hidden.append(omission)
    return tally


def table(tallies: Sequence[tuple[str, Tally]]) -> str:
    header = ["program", "waits", "left out", "refused", "damage in the replay", "other bits"]
    rows = [
        [name, *(str(n) for n in (one.waits, one.tried, one.refused, one.damaged, one.shown))]
        for name, one in tallies
    ]
    words = ("waits", "tried", "refused", "damaged", "shown")
    sums = [sum(getattr(one, word) for _, one in tallies) for word in words]
    share = f"{sums[-1]} ({sums[-1] / sums[-2]:.1%})"
    return markdown(header, [*rows, ["all", *map(str, sums[:-1]), share]])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=64, metavar="N", help="waits of each program to try")
    parser.add_argument("--page", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    tallies = []
    for make, budget, options in PROGRAMS:
        plan = program(make, budget, options)
        name = f"{make.__name__}, {budget}, {options['method']}, {plan.schedule.memory_model}"
        tallies.append((name, study(make, plan, arguments.cases)))
        for omission in tallies[-1][1].hidden:
            print(f"{name}: {omission.waiting} without {omission.late} did not show", flush=True)
    publish(f"{table(tallies)}\n{origin()}.\n", arguments.page, BEGIN, END)
    damaged, shown = (sum(getattr(one, word) for _, one in tallies) for word in ("damaged", "shown"))
    if shown < 0.95 * damaged:
        parser.exit(1, f"{shown} of {damaged} faults that do damage show as other bits\n")


if __name__ == "__main__":
    main()
