"""The stages for whole training steps of torch: their units.

What a unit does is in `torch_checks` and `torch_steps`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from ...instances.errors import BudgetError
from ...instances.files import read_instance
from ...solver.solve import solve
from ...validate.schedule import write_schedule
from .stages import Unit, is_settled, read, requires, write
from .study import RECOMPUTING, STEP_METHODS, Study

WAYS = ("plain", "save_on_cpu", "checkpoint", "activation_budget")
"""Ways to take a step with torch: as it is, and with three of its means against too little memory.

The last one compiles, and takes longest.
"""

_SOLVE_SECONDS = 60.0
"""Time limit of a method in seconds."""


def files_of(study: Study, name: str, batch: int) -> dict[str, Path]:
    """Return the files of a step: its ``record``, its ``profile``, and what ``step`` tells of it."""
    words = ("record", "profile", "step")
    return {word: study.path("step", name, batch, f"{word}.json") for word in words}


def instance_of(study: Study, name: str, batch: int, share: int, *, recompute: bool = False) -> Path:
    """Return the file of a step's instance under a budget; in one of two, operators may run again."""
    words = ("recompute",) if recompute else ()
    return study.path("step", name, batch, share, *words, "instance.json")


def answer_of(study: Study, name: str, batch: int, share: int, method: str) -> tuple[Path, Path]:
    """Return the files of a method's schedule, and of its result."""
    schedule, result = (
        study.path("step", name, batch, share, method, f"{word}.json") for word in ("schedule", "solve")
    )
    return schedule, result


def name_of(spec: str) -> str:
    """Return what a model is called."""
    return spec.rpartition(":")[2]


def records(study: Study) -> Iterator[Unit]:
    """Return the units for checks of the GPU, and for the record and the profile of every step."""
    for what in ("check_gpu", "check_steps", "check_oversubscribed"):
        path = study.path(what.replace("_", "-") + ".json")
        yield Unit(what, in_torch, (what, path), partial(has_passed, path))
    for spec, batch in study.steps:
        name = name_of(spec)
        instances = {
            (share, recompute): instance_of(study, name, batch, share, recompute=recompute)
            for share in study.shares
            for recompute in (False, True)
        }
        files = files_of(study, name, batch)
        yield Unit(
            f"{name}/{batch}",
            in_torch,
            ("record_one", spec, batch, instances, files, study.repeat),
            files["step"].exists,
        )


def plans(study: Study) -> Iterator[Unit]:
    """Return the units for the schedules of every step under every budget."""
    for spec, batch in study.steps:
        name = name_of(spec)
        for share in study.shares:
            for method in STEP_METHODS:
                source = instance_of(study, name, batch, share, recompute=method in RECOMPUTING)
                schedule, target = answer_of(study, name, batch, share, method)
                yield Unit(
                    f"{name}/{batch} {share}% {method}",
                    solve_step,
                    (source, method, schedule, target),
                    target.exists,
                    requires(source, "steps", f"{name}/{batch}"),
                )


def runs(study: Study) -> Iterator[Unit]:
    """Return the units for every schedule that was found, and then for torch's own ways.

    They come way by way, so that the one that compiles keeps no other from a machine that is lent for
    minutes.
    """
    for spec, batch in study.steps:
        name = name_of(spec)
        files = files_of(study, name, batch)
        for share in study.shares:
            for method in STEP_METHODS:
                source = instance_of(study, name, batch, share, recompute=method in RECOMPUTING)
                schedule, outcome = answer_of(study, name, batch, share, method)
                target = study.path("step", name, batch, share, method, "run.json")
                yield Unit(
                    f"{name}/{batch} {share}% {method}",
                    in_torch,
                    ("run_one", spec, batch, files, source, schedule, target, study.repeat),
                    partial(is_settled, outcome, target),
                    requires(schedule, "plans", f"{name}/{batch}"),
                )
    for way in WAYS:
        for spec, batch in study.steps:
            name = name_of(spec)
            files = files_of(study, name, batch)
            for share in study.shares:
                source = instance_of(study, name, batch, share)
                target = study.path("step", name, batch, share, way, "torch.json")
                yield Unit(
                    f"{name}/{batch} {share}% {way}",
                    in_torch,
                    ("train_one", spec, batch, way, files, source, target, study.repeat),
                    target.exists,
                    requires(source, "steps", f"{name}/{batch}"),
                )


def solve_step(source: Path, method: str, schedule: Path, target: Path) -> None:
    """Solve the instance of a step, and write the result, with a schedule if there is one."""
    try:
        result = solve(read_instance(source), method, time_limit=_SOLVE_SECONDS)
    except BudgetError as error:
        write(target, {"status": "infeasible", "stopped_by": str(error), "makespan_ns": None})
        return
    if result.schedule is not None:
        write_schedule(result.schedule, schedule)
    write(target, result.as_dict())


def has_passed(path: Path) -> bool:
    """Return whether there are checks, and all of them are passed."""
    return path.exists() and all(one["passed"] for one in read(path)["checks"])


def in_torch(what: str, *arguments: object) -> str | None:
    """Do what a function of `torch_steps` does; torch is imported in the process of the unit only."""
    from . import torch_checks, torch_steps

    where = torch_checks if what.startswith("check") else torch_steps
    wrong: str | None = getattr(where, what)(*arguments)
    return wrong
