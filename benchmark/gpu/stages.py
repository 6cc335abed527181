"""The stages of measuring a GPU: the units of each, and the work of a unit in its own process.

A unit is a network's profile, a layer in one direction, a schedule that is solved or run, or a way to train
with torch. Its result is a file. Units whose results the folder has are not done again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from msgspec import json

from ...instances.devices.caffe import TABLE_5, Direction, find_layer
from ...instances.errors import BudgetError, PebblerError
from ...instances.files import encode, read_bytes, read_instance, write_atomically, write_instance
from ...instances.importers.extras import require_extra
from ...instances.networks.taskgraph import task_graph
from ...instances.networks.zoo import find_network
from ...instances.profile import Profile, TaskKernels, read_profile, write_profile
from ...instances.workload import Workload
from ...validate.execution.backends import find_backend
from ...validate.schedule import read_schedule, write_schedule
from .study import Study

COUNTS = (1, 2, 4, 8, 16, 32)
"""Numbers of streams for a layer's samples."""

PASSES: tuple[Direction, ...] = ("forward", "backward")
"""Passes of a layer."""

WAYS = ("plain", "save_on_cpu", "checkpoint")
"""Ways to train with torch."""

ARITHMETICS = ("fp32", "tf32")
"""Arithmetics of torch's products and convolutions; pebbler's are single precision throughout."""

_SOLVE_SECONDS = 60.0
"""Time limit of a method in seconds."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Unit:
    """A measurement in its own process.

    Attributes
    ----------
    name
        Name of the unit within its stage.
    call, arguments
        A function that can be imported by its name, and its arguments. It writes the result. If it returns a
        sentence, this says what is wrong with the result.
    is_done
        Whether the folder has the result.
    lacks
        Function that returns which requirement is missing; None if none is.
    """

    name: str
    call: Callable[..., str | None]
    arguments: tuple[object, ...]
    is_done: Callable[[], bool]
    lacks: Callable[[], str | None] = lambda: None


# --- profiles and kernels -------------------------------------------------------------------------------


def profiles(study: Study) -> Iterator[Unit]:
    """Return the units for profiles: all algorithms of all tasks, and copies."""
    for network, batch in study.networks:
        path = study.path(network, batch, "profile.json")
        arguments = (path, network, batch, tuple(study.providers), study.repeat)
        yield Unit(f"{network}/{batch}", measure_profile, arguments, partial(has_profile, path))


def measure_profile(path: Path, network: str, batch: int, providers: Sequence[str], repeat: int) -> None:
    """Measure a profile, and write it after every column of algorithms.

    Kernels come last, and are added to the file of the complete profile, because CUPTI may end the process.
    """
    from ...validate.execution.profiling.profiler import profile

    def keep(found: Profile) -> None:
        write_profile(found, path)

    keep(profile(network, batch, find_backend("cuda", providers), repeat=repeat, keep=keep))


def kernels(study: Study) -> Iterator[Unit]:
    """Return the units for GLP4NN's inputs: the kernels of the first algorithms, and the cost of a launch."""
    for network, batch in study.networks:
        source = study.path(network, batch, "profile.json")
        path = study.path(network, batch, "kernels.json")
        name = f"{network}/{batch}"
        yield Unit(name, put_together_kernels, (source, path), path.exists, requires(source, "profile", name))


def put_together_kernels(source: Path, path: Path) -> None:
    """Write the kernels of a profile, which records them first if it has none, and measure a launch."""
    from ...validate.execution.cuda.backend import CudaBackend
    from ...validate.execution.cuda.recorded import launch_ns

    backend = CudaBackend()
    try:
        measured = read_profile(source)
        if not measured.kernels:
            measured = msgspec.structs.replace(measured, kernels=_recorded(backend, measured))
            write_profile(measured, source)
        recorded = {(one.sub_batch, one.name, one.algorithm): one.kernels for one in measured.kernels}
        tasks = {
            one.name: recorded[one.sub_batch, one.name, one.algorithms[0].name] for one in measured.tasks
        }
        found = {
            "device": backend.device,
            "network": measured.network,
            "batch": measured.tasks[0].sub_batch,
            "t_launch_ns": launch_ns(backend),
            "tasks": tasks,
        }
    finally:
        backend.close()
    write(path, found)


def _recorded(backend: Any, measured: Profile) -> tuple[TaskKernels, ...]:
    """Record the kernels of all algorithms of a profile."""
    from ...validate.execution.cuda.cupti import record_kernels
    from ...validate.execution.cuda.recorded import kernels_of_tasks

    record_kernels(lambda: None)  # where that cannot be, the reason
    found: list[TaskKernels] = []
    for sub_batch, tasks in measured.algorithms.items():
        graph = task_graph(find_network(measured.network), sub_batch, "executable")
        listed = {name: [(one.name, one.workspace_bytes) for one in ways] for name, ways in tasks.items()}
        found += [
            msgspec.convert({"sub_batch": sub_batch} | one, TaskKernels)
            for one in kernels_of_tasks(backend, graph, listed)
        ]
    return tuple(found)


def has_profile(path: Path) -> bool:
    """Return whether there is a complete profile."""
    return path.exists() and is_complete(read_profile(path))


def is_complete(measured: Profile) -> bool:
    """Return whether all algorithms were measured; the file may be of a measurement that was ended."""
    return bool(measured.meta.get("complete", True))


# --- layers on streams ----------------------------------------------------------------------------------


def layers_of(study: Study) -> Sequence[str]:
    """Return the names of the layers that run on streams."""
    return study.layers or [layer.name for layer in TABLE_5]


def streams(study: Study) -> Iterator[Unit]:
    """Return the units for layers on several numbers of streams, sample by sample (GLP4NN)."""
    for name in layers_of(study):
        for direction in PASSES:
            path = study.path(name, direction, "streams.json")
            arguments = (path, name, direction, study.repeat)
            yield Unit(f"{name} {direction}", measure_streams, arguments, path.exists)


def measure_streams(path: Path, name: str, direction: Direction, repeat: int) -> str | None:
    """Measure a layer on streams; predictions are made where the page is written, which takes no GPU."""
    from ..report.streams import measured_layer

    found = measured_layer(find_layer(name), direction, COUNTS, repeat=repeat)
    write(path, found)
    return None if found["identical_to_one_stream"] else "the results are not the bits of one stream"


# --- schedules ------------------------------------------------------------------------------------------


def solutions(study: Study) -> Iterator[Unit]:
    """Return the units for every network under every budget with every method."""
    for network, batch in study.networks:
        source = study.path(network, batch, "profile.json")
        for budget in study.budgets:
            instance = study.path(network, batch, budget, "instance.json")
            for method in study.methods:
                schedule, target = (
                    study.path(network, batch, budget, method, f"{word}.json")
                    for word in ("schedule", "solve")
                )
                yield Unit(
                    f"{network}/{batch} {budget} {method}",
                    solve_one,
                    (source, batch, budget, method, instance, schedule, target),
                    target.exists,
                    requires(source, "profile", f"{network}/{batch}"),
                )


def solve_one(
    source: Path, batch: int, budget: str, method: str, instance_file: Path, schedule_file: Path, target: Path
) -> None:
    """Solve a unit's instance, and write the result, with the instance and a schedule if there are any.

    The instance is made once. If the profile is measured again, its schedules remain valid for the instance.
    """
    from ...solver.solve import solve

    if not instance_file.exists():
        measured = read_profile(source)
        if not is_complete(measured):
            _log.warning("%s is not complete: algorithms that were not measured are left out", source)
        workload = Workload(measured.network, batch, measured.machine.device, profile=measured)
        try:
            write_instance(workload.instance(budget), instance_file)
        except BudgetError as error:
            write(target, {"status": "infeasible", "stopped_by": str(error), "makespan_ns": None})
            return
    result = solve(read_instance(instance_file), method, time_limit=_SOLVE_SECONDS)
    if result.schedule is not None:
        write_schedule(result.schedule, schedule_file)
    write(target, result.as_dict())


def runs(study: Study) -> Iterator[Unit]:
    """Return the units for every schedule that was found."""
    for network, batch in study.networks:
        for budget in study.budgets:
            for method in study.methods:
                outcome, schedule, target = (
                    study.path(network, batch, budget, method, f"{word}.json")
                    for word in ("solve", "schedule", "run")
                )
                yield Unit(
                    f"{network}/{batch} {budget} {method}",
                    run_one,
                    (study.path(network, batch, budget, "instance.json"), schedule, target, study.repeat),
                    partial(is_settled, outcome, target),
                    requires(schedule, "solve", f"{network}/{batch}"),
                )


def is_settled(outcome: Path, target: Path) -> bool:
    """Return whether a schedule has been run, or there is none to run."""
    return target.exists() or (outcome.exists() and read(outcome).get("makespan_ns") is None)


def run_one(instance_file: Path, schedule_file: Path, target: Path, repeat: int) -> str | None:
    """Execute a schedule."""
    from ...validate.check import check
    from ...validate.execution.trial import attempt
    from ..report.trial import as_dict

    instance = read_instance(instance_file)
    schedule = read_schedule(schedule_file, instance)
    if not (report := check(instance, schedule)).valid:
        raise PebblerError(f"{schedule_file} is invalid: {report.reasons[0]}")
    trial = attempt(instance, schedule, find_backend("cuda"), repeat=repeat)
    write(target, as_dict(trial, operations=True) | {"right": trial.right})
    if trial.right:
        return None
    return (
        f"the numbers are wrong: a gradient differs by {trial.max_abs_error:.3g} from that without a budget"
    )


# --- torch ----------------------------------------------------------------------------------------------


def trainings(study: Study) -> Iterator[Unit]:
    """Return the units for training with torch under the budgets of the instances, in every way."""
    for network, batch in study.networks:
        for way in WAYS:
            for arithmetic in ARITHMETICS:
                files = {
                    study.path(network, batch, budget, "instance.json"): study.path(
                        network, batch, budget, way, arithmetic, "torch.json"
                    )
                    for budget in study.budgets
                }
                yield Unit(
                    f"{network}/{batch} {way} {arithmetic}",
                    train,
                    (network, batch, way, arithmetic, files, study.repeat),
                    partial(_are_trained, files),
                    partial(_has_none, files, f"{network}/{batch}"),
                )


def train(network: str, batch: int, way: str, arithmetic: str, files: dict[Path, Path], repeat: int) -> None:
    """Train under the budget of each instance without a result."""
    from .torch_memory import iteration

    for source, target in files.items():
        if source.exists() and not target.exists():
            budget_bytes = read_instance(source).budget_bytes
            write(target, iteration(network, batch, budget_bytes, way, arithmetic, repeat=repeat))


def require_torch() -> None:
    """Refuse to continue without torch and a GPU for it.

    Raises
    ------
    PebblerError
        When torch cannot be imported, or finds no GPU.
    """
    require_extra("torch")
    from .torch_memory import require_gpu

    require_gpu()


def _are_trained(files: dict[Path, Path]) -> bool:
    there = [target for source, target in files.items() if source.exists()]
    return bool(there) and all(target.exists() for target in there)


def _has_none(files: dict[Path, Path], name: str) -> str | None:
    if any(source.exists() for source in files):
        return None
    return f"there is no instance of {name} yet; do the stage solve first"


# --- files ----------------------------------------------------------------------------------------------


def write(path: Path, found: dict[str, Any]) -> None:
    """Write a result as JSON, with one line for each element of its lists."""
    write_atomically(path, encode(found))


def read(path: Path) -> dict[str, Any]:
    """Read a result.

    Raises
    ------
    PebblerError
        When the file cannot be read or has no JSON object.
    """
    try:
        return json.decode(read_bytes(path), type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise PebblerError(f"{path} is no result of measuring ({error}); delete it") from None


def requires(source: Path, stage: str, name: str) -> Callable[[], str | None]:
    """Return that a file is missing, and the stage that writes it."""

    def lacks() -> str | None:
        if source.exists():
            return None
        return f"the stage {stage} has left nothing for {name} yet; do it first"

    return lacks
