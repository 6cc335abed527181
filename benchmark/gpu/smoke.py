"""The smoke test: whether a GPU computes the same as the CPU.

For small networks, every algorithm is launched once on the numbers of an iteration. Schedules by rule, which
need no solver, are executed, contiguous and paged. The CPU does the same, and the results are compared with a
tolerance. The file ``smoke.json`` has the passed checks, the differences and their sizes, each in a sentence.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from ...heuristics.methods import Limits, Refusal, find_method
from ...instances.errors import PebblerError
from ...instances.instance import Instance
from ...instances.memory import least_budget, with_budget
from ...instances.networks.taskgraph import TaskGraph, task_graph
from ...instances.networks.zoo import find_network
from ...instances.profile import CopyTimes, Profile, read_profile
from ...instances.transforms import in_pages
from ...instances.workload import Workload
from ...validate.check import check
from ...validate.execution.backends import find_backend
from ...validate.execution.data import initial
from ...validate.execution.device import Backend, DeviceError, Stream
from ...validate.execution.executor import Execution
from ...validate.execution.kernel import Kernel, kernels_of, resident
from ...validate.execution.rebuild import rebuild
from ...validate.execution.trial import attempt, tolerance_of
from ...validate.schedule import Schedule
from .stages import Unit, has_profile, is_complete, measure_profile, read, write
from .study import Study

METHODS = ("vdnn-all-m", "modnn")
"""Rules that need no solver: one that offloads every layer's input, and one that offloads only if memory is
short.
"""

Memory = Literal["contiguous", "paged"]
"""Memory model of an executed schedule."""

MEMORY: tuple[Memory, ...] = ("contiguous", "paged")
"""Memory models of the executed schedules."""

TOLERANCE = 1e-3
"""Greatest difference of two results, relative to the largest value, as sums have different orders; where an
algorithm rounds more, `tolerance_of` says how much.
"""

_MULTIPLES = tuple(map(Fraction, ("1", "1.02", "1.05", "1.1", "1.25", "1.5", "2", "3", "5")))
"""Multiples of the least budget; the first one at which a rule has a schedule is used."""

_EXACT = ("mask", "signs", "labels")
"""Operands that are not single-precision numbers, and so must have the same bits."""


# --- units ----------------------------------------------------------------------------------------------


def units(study: Study) -> Iterator[Unit]:
    """Return the units of every network: a profile, all algorithms, and the schedules."""
    for network, batch in study.smoke_networks:
        name = f"{network}/{batch}"
        source = _profile_of(study, network, batch)
        yield Unit(
            f"{name} profile",
            measure_profile,
            (source, network, batch, tuple(study.providers), study.repeat),
            partial(has_profile, source),
        )
        path = study.path("smoke", network, batch, "algorithms.json")
        arguments: tuple[object, ...] = (path, network, batch, tuple(study.providers))
        yield Unit(f"{name} algorithms", compare_algorithms, arguments, partial(_has_passed, path))
        for method in METHODS:
            for memory in MEMORY:
                path = study.path("smoke", network, batch, method, f"{memory}.json")
                yield Unit(
                    f"{name} {method} {memory}",
                    compare_schedule,
                    (path, source, batch, method, memory),
                    partial(_has_passed, path),
                    partial(_lacks_profile, source, name),
                )


def put_together(study: Study, failed: Mapping[str, str]) -> None:
    """Write ``smoke.json`` with the result of every check, including the failures of this run."""
    checks, missing = [], []
    for unit in units(study):
        path = unit.arguments[0]
        assert isinstance(path, Path)
        found = {"check": unit.name, "passed": False, "error": None, "sentence": ""}
        if path.exists() and unit.call is measure_profile:
            found |= _told_of(read_profile(path))
        elif path.exists():
            there = read(path)
            found |= {key: there[key] for key in ("passed", "error", "sentence")}
        elif unit.name not in failed:
            missing.append(unit.name)
            continue
        if unit.name in failed:
            found |= {"passed": False, "sentence": failed[unit.name]}
        checks.append(found)
    if checks:
        passed = not missing and all(one["passed"] for one in checks)
        result = {"passed": passed, "tolerance": TOLERANCE, "checks": checks, "missing": missing}
        write(study.path("smoke.json"), result)


def _profile_of(study: Study, network: str, batch: int) -> Path:
    return study.path("smoke", network, batch, "profile.json")


def _has_passed(path: Path) -> bool:
    return path.exists() and bool(read(path).get("passed"))


def _lacks_profile(source: Path, name: str) -> str | None:
    return None if source.exists() else f"there is no profile of {name} to make schedules from"


def _told_of(measured: Profile) -> dict[str, Any]:
    """Return the summary of a profile: how much was measured, and how fast its largest copies were."""
    listed = sum(len(task.algorithms) for task in measured.tasks)
    refused = len(measured.meta.get("not_measured", ()))
    told = (
        f"{listed} algorithms of {len(measured.tasks)} tasks measured, {refused} refused; {rates(measured)}"
    )
    return {"passed": is_complete(measured), "sentence": told}


def rates(measured: Profile) -> str:
    """Return how fast the largest copies were in each direction, in words."""
    largest: CopyTimes = measured.copies[-1]

    def rate(nanoseconds: int) -> str:
        return f"{largest.bytes / max(nanoseconds, 1):.1f} GB/s"

    return (
        f"{rate(largest.offload_ns)} to the host, {rate(largest.prefetch_ns)} to the device, "
        f"{rate(largest.move_ns)} inside"
    )


# --- schedules ------------------------------------------------------------------------------------------


def compare_schedule(target: Path, source: Path, batch: int, method: str, memory: Memory) -> str | None:
    """Execute a schedule by rule on the GPU and on the CPU, and compare losses and gradients."""
    measured = read_profile(source)
    workload = Workload(measured.network, batch, measured.machine.device, profile=measured)
    instance, schedule = ready_schedule(workload, method, memory)
    found = attempt(instance, schedule, find_backend("cuda"), repeat=1)
    wanted = attempt(on_cpu(instance), schedule, find_backend("cpu"), repeat=1)
    differences = compared(found.executions[0], wanted.executions[0])
    where, error = max(differences.items(), key=lambda one: one[1])
    if not found.right:
        told = f"on the GPU, a gradient differs by {found.max_abs_error:.3g} from that without a budget"
    else:
        told = f"losses and gradients differ from the CPU's by up to {error:.2g} of the largest, in {where}"
    kernels = [step.kernel for step in found.plan.steps if step.kernel is not None]
    passed = found.right and error <= max(TOLERANCE, tolerance_of(kernels))
    budget = {"budget_bytes": instance.budget_bytes, "operations": len(schedule.operations)}
    write(
        target,
        {"passed": passed, "error": _finite(error), "sentence": told, "differences": _all_finite(differences)}
        | budget
        | {"identical_to_unbudgeted": found.identical, "measured_ns": found.measured_ns},
    )
    return None if passed else told


def ready_schedule(workload: Workload, method: str, memory: Memory) -> tuple[Instance, Schedule]:
    """Return the schedule of a rule under the least of some budgets that is enough, and its instance.

    Raises
    ------
    PebblerError
        When the rule has no schedule under any of them.
    """
    roomy = workload.round(workload.batch, 1)
    least = least_budget(in_pages(roomy) if memory == "paged" else roomy)
    reason = ""
    for multiple in _MULTIPLES:
        instance = with_budget(roomy, math.ceil(multiple * least))
        try:
            schedule = find_method(method).call(instance, Limits(memory=memory)).schedule
        except Refusal as refusal:
            reason = str(refusal)
            continue
        if schedule is None:
            continue
        if not (report := check(instance, schedule)).valid:
            raise PebblerError(
                f"the schedule of {method} for {instance.name} is invalid: {report.reasons[0]}"
            )
        return instance, schedule
    raise PebblerError(f"{method} has no {memory} schedule of {roomy.name} under {multiple}xMmin: {reason}")


def on_cpu(instance: Instance) -> Instance:
    """Return the instance with algorithms of the CPU, in the workspaces of the GPU's algorithms.

    A schedule of one instance is a schedule of the other: addresses and waits are the same.
    """
    rebuilt = rebuild(instance)
    backend = find_backend("cpu")()
    try:
        names = [leanest(backend, kernel)[0] for kernel in rebuilt.kernels]
    finally:
        backend.close()
    tasks = tuple(
        msgspec.structs.replace(
            task,
            algorithms=tuple(msgspec.structs.replace(one, name=name) for one in task.algorithms),
        )
        for task, name in zip(instance.tasks, names, strict=True)
    )
    return msgspec.structs.replace(instance, tasks=tasks)


def leanest(backend: Backend, kernel: Kernel) -> tuple[str, int]:
    """Return the algorithm with the least workspace, and this workspace."""
    return min(backend.algorithms(kernel), key=lambda one: one[1])


def compared(found: Execution, wanted: Execution) -> dict[str, float]:
    """Return the difference of the losses, and of each layer's gradients, as `difference` computes it."""
    return {"the losses": difference(found.losses, wanted.losses)} | {
        name: difference(found.gradients[name], values) for name, values in wanted.gradients.items()
    }


def difference(found: NDArray[np.float32], wanted: NDArray[np.float32]) -> float:
    """Return the largest difference, relative to the largest expected value; infinity if one is NaN."""
    unlike = found.view(np.uint32) != wanted.view(np.uint32)
    if not unlike.any():
        return 0.0
    apart = float(np.max(np.abs(found[unlike].astype(np.float64) - wanted[unlike])))
    largest = float(np.max(np.abs(wanted), initial=0.0, where=np.isfinite(wanted)))
    return math.inf if not math.isfinite(apart) else apart / largest if largest else apart


# --- algorithms -----------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Algorithms:
    """The results of the algorithms so far."""

    launched: list[dict[str, Any]] = field(default_factory=list)
    refused: list[dict[str, Any]] = field(default_factory=list)

    def result(self, ended: str | None) -> dict[str, Any]:
        """Return the check; `ended` says why not all algorithms were launched."""
        wrong = [one for one in self.launched if one["error"] is None or one["error"] > one["tolerance"]]
        told = f"{len(self.launched)} algorithms launched, {len(self.refused)} refused; "
        if ended is not None:
            told = f"{len(self.launched)} algorithms launched, then: {ended}"
        elif wrong:
            listed = ", ".join(f"{one['algorithm']} of {one['task']}" for one in wrong[:5])
            told += f"{len(wrong)} differ from the CPU by more than they may: {listed}"
        else:
            most = max((one["error"] for one in self.launched), default=0.0)
            told += f"results differ from the CPU's by up to {most:.2g} of the largest"
        errors = [math.inf if one["error"] is None else one["error"] for one in self.launched]
        return {
            "passed": ended is None and not wrong,
            "error": _finite(max(errors, default=0.0)),
            "sentence": told,
            "algorithms": self.launched,
            "refused": self.refused,
        }


def compare_algorithms(target: Path, network: str, batch: int, providers: Sequence[str]) -> str | None:
    """Launch every algorithm of every task once, on the numbers of an iteration that the CPU computes.

    Every task reads data of the CPU, so that an error of one algorithm does not affect the others. Its
    workspace, and the data that it is the first to write, are NaN at first.
    """
    graph = task_graph(find_network(network), batch, "executable")
    done, ended = _Algorithms(), None
    cpu = _Places(find_backend("cpu")(), graph)
    try:
        gpu = _Places(find_backend("cuda", providers)(), graph)
        try:
            most = gpu.backend.memory_bytes() // 4
            cpu.write(_first(graph, batch))
            for kernel in kernels_of(graph, batch):
                given = cpu.read(kernel)
                cpu.launch(kernel, *leanest(cpu.backend, kernel))
                wanted = cpu.read(kernel)
                for name, size in gpu.backend.algorithms(kernel):
                    what = {"task": kernel.task, "algorithm": name, "workspace_bytes": size}
                    if size > most:
                        done.refused.append(what | {"status": "more than a quarter of the memory"})
                        continue
                    gpu.write(given)
                    try:
                        gpu.launch(kernel, name, size)
                        bound = max(TOLERANCE, tolerance_of([replace(kernel, algorithm=name)]))
                        error = _apart(kernel, gpu.read(kernel), wanted)
                    except DeviceError as failure:  # the context is lost, and with it the rest
                        ended = f"{name} of {kernel.task}: {failure}"
                        break
                    except PebblerError as refusal:
                        done.refused.append(what | {"status": str(refusal)})
                        continue
                    done.launched.append(what | {"error": _finite(error), "tolerance": bound})
                write(target, done.result(ended or "the process ended"))
                if ended is not None:
                    break
        finally:
            gpu.backend.close()
    finally:
        cpu.backend.close()
    result = done.result(ended)
    write(target, result)
    return None if result["passed"] else str(result["sentence"])


Values = dict[str, NDArray[np.uint8]]
"""Bytes of tensors by name."""


class _Places:
    """All tensors of a network on a device, each at its own place, and kernels on them."""

    def __init__(self, backend: Backend, graph: TaskGraph) -> None:
        self.backend = backend
        self._sizes = {block.name: block.bytes for block in graph.blocks}
        self._sizes |= dict(resident(graph.network, graph.batch))
        self._stream: Stream = backend.stream("compute")
        self._addresses = {name: backend.allocate(size) for name, size in self._sizes.items()}
        self._workspace, self._room = 0, 0
        for name, size in self._sizes.items():
            self._stream.fill(self._addresses[name], size)
        self._stream.record().synchronize()

    def write(self, values: Values) -> None:
        """Write some tensors."""
        for name, value in values.items():
            self.backend.write(self._addresses[name], value)

    def read(self, kernel: Kernel) -> Values:
        """Return the data that a kernel touches."""
        names = dict.fromkeys(kernel.operands.values())
        return {name: self.backend.read(self._addresses[name], self._sizes[name]) for name in names}

    def launch(self, kernel: Kernel, algorithm: str, size: int) -> None:
        """Run a kernel with an algorithm, and wait for it."""
        prepared = self.backend.prepare(replace(kernel, algorithm=algorithm, workspace_bytes=size))
        if size > self._room:
            self._workspace, self._room = self.backend.allocate(size), size
        addresses = {word: self._addresses[name] for word, name in kernel.operands.items()}
        if size:
            self._stream.fill(self._workspace, size)
            addresses["workspace"] = self._workspace
        self._stream.launch(prepared, addresses, 0)
        self._stream.record().synchronize()


def _first(graph: TaskGraph, batch: int) -> Values:
    """Return weights, images and labels; gradients of the weights begin as zeros."""
    values = {
        name: np.ascontiguousarray(value).view(np.uint8).reshape(-1)
        for name, value in initial(graph.network, batch).items()
    }
    zeros = {
        name: np.zeros(size, dtype=np.uint8)
        for name, size in resident(graph.network, batch)
        if name.startswith("dW(")
    }
    return values | zeros


def _apart(kernel: Kernel, found: Values, wanted: Values) -> float:
    """Return the largest difference in a kernel's data; infinity if bits that must be the same differ."""
    most = 0.0
    for word, name in kernel.operands.items():
        if word in _EXACT:
            most = max(most, 0.0 if found[name].tobytes() == wanted[name].tobytes() else math.inf)
        else:
            most = max(most, difference(found[name].view(np.float32), wanted[name].view(np.float32)))
    return most


def _finite(error: float) -> float | None:
    """Return a number that JSON can express."""
    return error if math.isfinite(error) else None


def _all_finite(errors: Mapping[str, float]) -> dict[str, float | None]:
    return {name: _finite(error) for name, error in errors.items()}
