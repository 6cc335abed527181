"""Train a torch model within a memory budget: plan a whole training step, and take steps by the plan.

Import this module by its name, ``import pebbler.torch``; it needs torch. See docs/torch.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from .heuristics.parts import with_parts
from .instances.errors import FormatError, PebblerError
from .instances.figures import Natural, Text
from .instances.files import read_document, read_instance, sha256_of, write_document, write_instance
from .instances.importers.extras import require_extra
from .instances.importers.torch_workload import TorchStepWorkload
from .instances.memory import require_budget, with_budget
from .instances.transforms import split_parts
from .instances.units import as_lines, format_size, format_time, parse_size, parse_time
from .solver.answers import Answers
from .solver.bounds import Bound
from .solver.result import Result, Status
from .solver.solve import attempt
from .validate.check import check
from .validate.measures import average_bytes, moved_bytes, pinned_bytes
from .validate.schedule import read_schedule, write_schedule

if TYPE_CHECKING:
    from .instances.importers.torch_step.record import StepRecord
    from .instances.importers.torch_step.steps import MakeTrainingStep
    from .instances.instance import Instance
    from .instances.profile import Profile
    from .validate.execution.torch.policy import TrainingPolicy
    from .validate.execution.torch.step import StepExecutor
    from .validate.schedule import Schedule

__all__ = ["NoScheduleError", "TrainingPlan", "load", "plan"]

_RULES = {
    "flow": ("modnn",),
    "flow-parts": ("modnn-parts",),
    "flow-recompute": ("memonger-rule", "superneurons-rule", "modnn"),
}
"""The methods that `plan` asks unless it is told another one, with rules for when one has found nothing."""


@dataclass(frozen=True, slots=True, eq=False)
class TrainingPlan:
    """A training step that was recorded, and how it runs within a budget.

    Attributes
    ----------
    record
        The operators of the step.
    instance
        The scheduling problem that they are.
    result
        The schedule with its figures: predicted time, bound, gap, peak.
    others
        Plans of the step in the other sizes that were asked for, within the same memory.
    """

    record: StepRecord
    instance: Instance
    result: Result
    others: tuple[TrainingPlan, ...] = ()

    def __str__(self) -> str:
        return "\n\n".join(as_lines(plan._facts()) for plan in (self, *self.others))

    def _facts(self) -> list[tuple[str, str]]:
        schedule, result = self.schedule, self.result
        runs = sum(operation.kind == "run" for operation in schedule.operations)
        moved = (result.offloaded_bytes or 0) + (result.prefetched_bytes or 0)
        gap = result.optimality_gap
        return [
            ("batch", str(self.batch)),
            ("step", f"{len(self.instance.tasks)} operators, {len(self.instance.blocks)} blocks"),
            ("peak of eager torch", format_size(self.record.eager_peak_bytes)),
            ("budget", format_size(self.instance.budget_bytes)),
            ("peak memory", f"{format_size(schedule.peak_bytes)} ({schedule.peak_bytes} bytes)"),
            ("moved", f"{format_size(moved)} to the host and back"),
            ("run again", f"{runs - len(self.instance.tasks)} operators"),
            ("predicted", format_time(schedule.makespan_ns)),
            ("lower bound", format_time(result.lower_bound_ns)),
            ("gap", "unknown" if gap is None else f"{gap:.2%}"),
        ]

    @property
    def batch(self) -> int:
        """The batch size."""
        assert self.instance.made_from.batch is not None
        return self.instance.made_from.batch

    @property
    def schedule(self) -> Schedule:
        """The program that every step executes; `plan` returns nothing without one."""
        assert self.result.schedule is not None
        return self.result.schedule

    def save(self, folder: str | Path) -> None:
        """Write the plan to files, from which `load` reads it again.

        The folder gets an instance, a schedule and the record of the step for every batch size, and at last
        ``plan.json``, which names them with their checksums.

        Parameters
        ----------
        folder
            It is made where it is not there.

        Raises
        ------
        PebblerError
            When the folder cannot be written.
        """
        from .instances.importers.torch_record_file import write_record

        place = Path(folder)
        try:
            place.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise PebblerError(f"{folder} cannot be a folder: {error.strerror}") from None
        steps = []
        for plan in (self, *self.others):
            files = _files_of(place, plan.instance.name)
            instance = write_instance(plan.instance, files["instance"])
            write_schedule(plan.schedule, files["schedule"], instance)
            record = write_record(plan.record, files["record"])
            answer = {name: getattr(plan.result, name) for name in Answer.__struct_fields__}
            steps.append(
                PlannedFiles(
                    name=plan.instance.name,
                    instance_sha256=instance,
                    schedule_sha256=sha256_of(files["schedule"]),
                    record_sha256=record,
                    answer=Answer(**answer),
                )
            )
        write_document(PlanFile(steps=tuple(steps)), place / "plan.json")

    def bind(self, module: Any, optimizer: Any = None, *, restore: bool = True) -> StepExecutor:
        """Return the step of a module and an optimizer: call it with inputs, and it returns the loss.

        Inputs have the shapes of one of the batch sizes that were planned.

        Between steps, every parameter, buffer and state of the optimizer is in the user's own tensor. Close
        the step, or use it in a ``with`` block, to give these tensors memory of their own again.

        Parameters
        ----------
        module, optimizer
            Like those that `make_step` returned, or these. Of a step on a GPU, they may be on the CPU.
        restore
            Whether a step that fails can be undone; for that, each step copies parameters, buffers and states
            to the host first. Without it, steps are quicker, and after one that fails, all of these are NaN.

        Raises
        ------
        PebblerError
            When they are not like those that were planned for, or there is too little memory; the message
            names what differs.
        """
        from .validate.execution.torch.planned import PlannedStep
        from .validate.execution.torch.step import StepExecutor

        sizes = [PlannedStep(plan.record, plan.instance, plan.schedule) for plan in (self, *self.others)]
        return StepExecutor(sizes, module, optimizer, restore=restore)

    def policy(self) -> TrainingPolicy:
        """Return what the plan keeps, copies and computes again, for steps that eager torch takes.

        ``with policy: loss = step(*inputs)`` applies it to a forward pass.
        """
        from .validate.execution.torch.policy import TrainingPolicy

        return TrainingPolicy(self.record, self.instance, self.schedule)


class NoScheduleError(PebblerError):
    """A method found no schedule for a step."""


class Answer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of a `Result`, what does not follow from the schedule."""

    stopped_by: str
    lower_bound_ns: Natural
    bound_by: Text
    certified: bool
    certified_lower_bound_ns: Natural
    method: Text
    solve_seconds: float
    seed: Natural


class PlannedFiles(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The step of a batch size: what its files begin with, their checksums, and the method's answer."""

    name: Text
    instance_sha256: str
    schedule_sha256: str
    record_sha256: str
    answer: Answer


class PlanFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file ``plan.json``, with the steps of all batch sizes."""

    format: Literal["pebbler/training-plan/1"] = "pebbler/training-plan/1"
    steps: tuple[PlannedFiles, ...]


def load(folder: str | Path) -> TrainingPlan:
    """Read a plan that `TrainingPlan.save` has written; the checker proves its schedules again.

    Parameters
    ----------
    folder
        With ``plan.json`` and the files that this names.

    Raises
    ------
    PebblerError
        When torch is missing or another one, or a file is missing, not as it was written, or does not fit the
        others; the message names the file.
    """
    require_extra("torch")
    place = Path(folder)
    document = read_document(place / "plan.json", PlanFile, "a plan of a training step")
    if not document.steps:
        raise FormatError(f"{place / 'plan.json'} is not a plan of a training step: it has no step")
    first, *others = (_loaded(place, planned) for planned in document.steps)
    return replace(first, others=tuple(others))


def _loaded(folder: Path, planned: PlannedFiles) -> TrainingPlan:
    """Read the files of a batch size, and refuse what does not belong together."""
    from .instances.importers.torch_record_file import read_record
    from .instances.importers.torch_step.instance import require_instance_of

    if Path(planned.name).name != planned.name:
        raise FormatError(f"{folder / 'plan.json'} names files in another folder: {planned.name}")
    files = _files_of(folder, planned.name)
    for kind, path in files.items():
        if sha256_of(path) != getattr(planned, f"{kind}_sha256"):
            raise FormatError(f"{path} is not as it was when the plan was saved; save the plan anew")
    record, instance = read_record(files["record"]), read_instance(files["instance"])
    schedule = read_schedule(files["schedule"], instance)
    try:
        require_instance_of(record, instance)
    except PebblerError as error:
        raise FormatError(f"{files['instance']} does not fit {files['record'].name}: {error}") from None
    report = check(instance, schedule, instance_sha256=planned.instance_sha256)
    if not report.valid:
        raise FormatError(f"{files['schedule']} is not a valid schedule: {report.reasons[0]}")
    answer = planned.answer
    if schedule.memory_model == "divisible" or schedule.makespan_ns < answer.lower_bound_ns:
        raise FormatError(f"{folder / 'plan.json'} has a bound or a memory model that its schedule has not")
    optimal = schedule.makespan_ns == answer.lower_bound_ns
    result = Result(
        **msgspec.structs.asdict(answer),
        status=Status.OPTIMAL if optimal else Status.FEASIBLE,
        makespan_ns=schedule.makespan_ns,
        optimality_gap=Bound(answer.lower_bound_ns, answer.bound_by, answer.certified).gap(
            schedule.makespan_ns
        ),
        peak_bytes=schedule.peak_bytes,
        average_bytes=average_bytes(instance, schedule),
        offloaded_bytes=moved_bytes(instance, schedule, "offload"),
        prefetched_bytes=moved_bytes(instance, schedule, "prefetch"),
        pinned_bytes=pinned_bytes(instance, schedule),
        memory_model=schedule.memory_model,
        schedule=schedule,
        certificate=None,
    )
    return TrainingPlan(record, instance, result)


def _files_of(folder: Path, name: str) -> dict[str, Path]:
    """Return the files of a batch size by what they have."""
    return {kind: folder / f"{name}.{kind}.json" for kind in ("instance", "schedule", "record")}


def plan(
    make_step: MakeTrainingStep,
    *,
    batch: int | Sequence[int],
    budget: int | str,
    time_limit: float | str | None = 60.0,
    recompute: bool = False,
    method: str | None = None,
    memory: Literal["contiguous", "paged"] = "contiguous",
    weights_as_blocks: bool = True,
    parts: str | None = None,
    link: str | None = None,
    profile: Profile | None = None,
    clip: float | None = None,
    seed: int = 0,
) -> TrainingPlan:
    """Record the training step that a function makes, and find a schedule for it within a budget.

    Parameters
    ----------
    make_step
        From a batch size to ``(module, step, inputs, optimizer)``: ``step(*inputs)`` is the loss, computed
        with the module. It runs twice where the module is, on the CPU or on a GPU; module and optimizer are
        then as before.
    batch
        The batch size; or several, such as ``(64, 17)`` where the last batch of an epoch is smaller. The step
        of each is recorded and planned, and one executor takes them all.
    budget
        Memory for everything on the device, from weights to scratch: bytes, ``6GiB``, a share of the peak
        without a limit, ``50%``, or a multiple of the least possible budget, ``1.05xMmin``; of several batch
        sizes, that which has or needs most.
    time_limit
        Seconds, or a text such as ``60s``, that the method may take for each batch size; None: until it is
        done.
    recompute
        Whether operators may run again.
    method
        Name of the method; None: ``flow``, with `parts` ``flow-parts``, and with `recompute`
        ``flow-recompute``, and where that has found no schedule in time, the best one by a rule.
    memory
        ``contiguous``, or ``paged``.
    weights_as_blocks
        Whether parameters, buffers and states may be on the host, also between steps.
    parts
        Whether feature maps, gradients and inputs leave in parts: of a size such as ``8MiB``, 2 MiB or more,
        or ``auto``, which fits the budget; None: they leave whole. Parameters, buffers and states always do,
        as each is one tensor of the user's between steps.
    link
        Bandwidth of copies between host and device, for the prediction: by default that of the profile;
        without one, what a GPU's copies of 32 MiB reach, or ``10GB/s`` on the CPU.
    profile
        Times of operators and copies, as `pebbler profile --torch` measures them and `pebbler.read_profile`
        reads them; without one, times of operators are measured while the step is recorded.
    clip
        The norm that gradients are clipped to before the optimizer's step; None: they are not.
    seed
        Of the method.

    Raises
    ------
    NoScheduleError
        When the method found no schedule; the message says why.
    PebblerError
        When torch is missing, or the step cannot be recorded.
    """
    sizes = (batch,) if isinstance(batch, int) else tuple(batch)
    if not sizes or len({*sizes}) < len(sizes):
        raise PebblerError(f"batch is {batch}; give one batch size, or several that differ")
    seconds = parse_time(time_limit) if isinstance(time_limit, str) else time_limit
    workloads = [
        TorchStepWorkload(
            "training step" if profile is None else profile.network,
            size,
            "cpu" if profile is None else profile.machine.device,
            make_step=make_step,
            clip=clip,
            recompute=recompute,
            profile=profile,
            link=link,
            weights_as_blocks=weights_as_blocks,
            steady=weights_as_blocks,
        )
        for size in sizes
    ]
    from .instances.importers.torch_step.steps import require_alike

    records = [workload.record() for workload in workloads]
    require_alike(records)
    instances = _in_one_pool([workload.instance(0, check_budget=False) for workload in workloads], budget)
    if parts is not None:
        instances = [_in_parts(instance, parts) for instance in instances]
    usual = "flow-recompute" if recompute else "flow" if parts is None else "flow-parts"
    methods = (method,) if method is not None else (usual, *_RULES[usual])
    plans = []
    for record, instance in zip(records, instances, strict=True):
        result = _solved(instance, methods, seconds, memory, seed)
        if result.schedule is None:
            raise NoScheduleError(
                f"{result.method} found no schedule of {instance.name} within {budget}: {result.stopped_by}"
            )
        plans.append(TrainingPlan(record, instance, result))
    return replace(plans[0], others=tuple(plans[1:]))


def _solved(
    instance: Instance,
    methods: Sequence[str],
    seconds: float | None,
    memory: Literal["contiguous", "paged"],
    seed: int,
) -> Result:
    """Return the answer of the first method, or where it has found no schedule, the best of the others'.

    The bound is the best one that any of them has.
    """
    method, *rules = methods
    answers = Answers(instance, memory)
    results = [attempt(answers, method, time_limit=seconds, seed=seed)]
    if results[0].status is Status.UNKNOWN:
        results += [attempt(answers, rule, seed=seed) for rule in rules]
    for failure in (result.failure for result in results):
        if failure is not None:
            raise failure
    return min(results, key=lambda one: inf if one.makespan_ns is None else one.makespan_ns)


def _in_one_pool(instances: list[Instance], budget: int | str) -> list[Instance]:
    """Return the instances of several batch sizes under one budget, with pools of one size."""
    resident = max(instance.resident_bytes for instance in instances)
    alike = [msgspec.structs.replace(instance, resident_bytes=resident) for instance in instances]
    most = max(with_budget(instance, budget).budget_bytes for instance in alike)
    found = [with_budget(instance, most) for instance in alike]
    for instance in found:
        require_budget(instance)
    return found


def _in_parts(instance: Instance, parts: str) -> Instance:
    """Return the instance with what does not outlive a step in parts, of a size or as its budget suggests."""
    if parts == "auto":
        return with_parts(instance, instance.carried)
    size = parse_size(parts, "a size of parts; write it as 8MiB, or auto")
    movable = {d for d, block in enumerate(instance.blocks) if block.offload_ns is not None}
    return split_parts(instance, dict.fromkeys(movable - {*instance.carried}, size))
