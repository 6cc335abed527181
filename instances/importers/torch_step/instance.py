"""The instance of a recorded step: operators become tasks, and storages become blocks."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, Literal

from msgspec.structs import replace

from ...arguments import require_fixed_reads
from ...devices.device import Direction, whole_ns
from ...errors import PebblerError
from ...figures import text_of
from ...instance import Algorithm, Block, Initially, Instance, Task
from ...origin import LayerTasks, Origin
from ...profile import Profile
from ...transforms import parse_link
from ...workload import Side
from .devices import device_of
from .memory import ALIGNMENT, aligned
from .record import StepOperator, StepRecord, StepStorage

Lasting = Literal["resident", "device", "carried"]
"""Where parameters, buffers and states are: on the device throughout; at both ends; where a schedule says."""

_LASTING = ("parameter", "buffer", "state")


@dataclass(frozen=True, slots=True, eq=False)
class StepInstance:
    """An instance, and what its tasks and blocks are in the record.

    Attributes
    ----------
    instance
        Under a budget of 0; give it another by `with_budget`.
    operators
        For every task, the index of its operator.
    storages
        For every block, the index of its storage.
    resident
        Storages that are no blocks, but on the device throughout: those of constants, of parameters and
        buffers that no operator rewrites, and of single results such as norms.
    """

    instance: Instance
    operators: tuple[int, ...]
    storages: tuple[int, ...]
    resident: tuple[int, ...]


def step_instance(
    record: StepRecord,
    *,
    name: str,
    link: str | None = None,
    profile: Profile | None = None,
    lasting: Lasting = "device",
    recompute: bool = True,
    engines: Literal["duplex", "single"] = "duplex",
    optimizer_on: Side = "device",
    network: str | None = None,
    batch: int | None = None,
) -> StepInstance:
    """Return the instance of a recorded step.

    Every operator that computes on the device is a task, whose only algorithm takes the time that was
    measured, by the profile if there is one, and the scratch that its manner of writing needs. Where torch's
    allocator gives scratch out beside the pool, the largest one is among the resident bytes, but for what is
    so large that it has a place in the pool. An operator may run again if it only makes new data; where it
    draws random numbers, from the same state of the generator. Results of at most 64 bytes are no blocks if
    they are written once, before the optimizer's operators and not for them: clipping reads the norms of all
    gradients at once, and each would take a page in paged memory.

    Parameters
    ----------
    record
        Of `record_step`.
    name
        Of the instance.
    link
        Between device and host, as `parse_link` takes it; it can be left out where there is a profile.
    profile
        Of the step with this batch; without one, times are those of the record.
    lasting
        ``device``: whatever of parameters, buffers and states an operator touches is a block, on the device
        when the step begins and when it ends; it may leave between. ``carried``: the step finds it where the
        step before has left it, which a schedule chooses. ``resident``: it never leaves. What is rewritten is
        a block all the same, so that no task that reads it runs again on other values.
    recompute
        Whether those operators may run again that can.
    engines
        ``duplex``: one copy stream per direction; ``single``: one for both.
    optimizer_on
        Where the operators of the optimizer compute: on the ``device``, on the ``host``, which takes as long
        as was measured, or where a schedule says (``choose``).
    network
        What the model is called; None: as the instance.
    batch
        Images, or whatever the model counts; None: unknown.

    Raises
    ------
    PebblerError
        When the link is none, the record has no task, or the profile is not of this step.
    """
    operators = [k for k, operator in enumerate(record.operators) if operator.kind == "task"]
    if not operators:
        raise PebblerError(f"{name}: the step has no operator that computes; record one that trains")
    chosen = [record.operators[k] for k in operators]
    touched = {d for operator in chosen for d in (*operator.reads, *operator.outputs, *operator.updates)}
    idle = _idle(chosen)
    rewritten = {d for operator in chosen for d in operator.updates} - idle
    kept = rewritten | _of_optimizer(chosen)
    storages: list[int] = []
    resident: list[int] = []
    for d, storage in enumerate(record.storages):
        if storage.bytes and not storage.on_host and d in touched:
            moves = storage.role in _LASTING and d not in idle and (lasting != "resident" or d in rewritten)
            is_block = storage.role in ("data", "gradient", "input") or moves
            if storage.role == "data" and storage.bytes <= ALIGNMENT and d not in kept:
                is_block = False
            (storages if is_block else resident).append(d)
    number = {d: index for index, d in enumerate(storages)}
    ends = {record.loss.storage} | _untaken_gradients(record, chosen)
    costs = _Costs(link, profile, batch)
    device = device_of(record.device)
    alignment = device.alignment
    measured = [costs.algorithm(operator) for operator in chosen]
    reserve = 0
    if not device.scratch_in_pool:
        large = [operator.segments_bytes for operator in chosen]
        both = list(zip(measured, large, strict=True))
        reserve = max((one.workspace_bytes for one, segments in both if not segments), default=0)
        measured = [
            replace(one, workspace_bytes=segments and max(one.workspace_bytes, segments))
            for one, segments in both
        ]

    def blocks(touched: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(number[d] for d in touched if d in number)

    instance = Instance(
        name=name,
        engines=engines,
        budget_bytes=0,
        resident_bytes=sum(aligned(record.storages[d].bytes, alignment) for d in resident)
        + aligned(reserve, alignment),
        alignment_bytes=alignment,
        blocks=tuple(_block(record.storages[d], costs, lasting, d in ends) for d in storages),
        tasks=tuple(
            Task(
                name=text_of(operator.name),
                inputs=blocks(operator.reads),
                outputs=blocks(operator.outputs),
                updates=blocks(operator.updates),
                algorithms=_algorithms(algorithm, _side(operator, optimizer_on)),
                recomputable=recompute
                and operator.may_run_again
                and bool(blocks(operator.outputs))
                and not blocks(operator.updates)
                and _side(operator, optimizer_on) == "device",
            )
            for operator, algorithm in zip(chosen, measured, strict=True)
        ),
        meta=_meta(record),
        origin=Origin(
            network=network or name,
            batch=batch,
            sub_batch=batch,
            device=record.device if profile is None else profile.machine.device,
            graph="executable",
            cost_model="profile",
            weights_as_blocks=lasting != "resident",
            steady=lasting == "carried",
            mapping=None if profile is None else profile.mapping,
            launches=None if profile is None else profile.launches,
        ),
        layers=_layers(chosen),
    )
    return StepInstance(instance, tuple(operators), tuple(storages), tuple(resident))


def require_instance_of(record: StepRecord, instance: Instance) -> None:
    """Refuse an instance that is not one of a record.

    Its times, its budget and its link are its own. Tensors may be in parts, fewer tasks may run again, tasks
    may run on the host, and there may be more scratch.

    Raises
    ------
    PebblerError
        With the first task or tensor that differs.
    """
    origin = instance.made_from
    lasting: Lasting = "carried" if origin.steady else "device" if origin.weights_as_blocks else "resident"
    recorded = step_instance(record, name=instance.name, link="1GB/s", lasting=lasting).instance
    if (
        instance.alignment_bytes != recorded.alignment_bytes
        or instance.resident_bytes < recorded.resident_bytes
    ):
        raise PebblerError(f"{instance.name}: alignment or resident bytes are not those of the recorded step")
    require_fixed_reads(instance, "recorded steps")
    for kind, describe in (("task", _tasks), ("tensor", _tensors)):
        found, wanted = describe(instance), describe(recorded)
        if differing := [name for name in {**wanted, **found} if found.get(name) != wanted.get(name)]:
            raise PebblerError(f"{instance.name}: {kind} '{differing[0]}' is not as recorded; plan it anew")
    for task, same in zip(instance.tasks, recorded.tasks, strict=True):
        least = same.algorithms[0].workspace_bytes
        if any(algorithm.workspace_bytes < least for algorithm in task.algorithms):
            raise PebblerError(f"{instance.name}: task '{task.name}' has too little scratch; plan it anew")
        if task.recomputable and not same.recomputable:
            raise PebblerError(f"{instance.name}: task '{task.name}' cannot run again; plan it anew")


def _tasks(instance: Instance) -> dict[str, Any]:
    """Return the place of every task, and the bytes that it touches of each tensor."""

    def touched(blocks: tuple[int, ...]) -> Counter[str]:
        found: Counter[str] = Counter()
        for block in (instance.blocks[d] for d in blocks):
            found[block.tensor or block.name] += block.bytes
        return found

    return {
        task.name: (k, *map(touched, (task.inputs, task.outputs, task.updates)))
        for k, task in enumerate(instance.tasks)
    }


def _tensors(instance: Instance) -> dict[str, Any]:
    """Return the bytes of every tensor, and where it is when a step begins and ends."""
    found: dict[str, Any] = {}
    for block in instance.blocks:
        size, where = found.get(block.tensor or block.name, (0, set()))
        found[block.tensor or block.name] = size + block.bytes, where | {(block.initially, block.finally_)}
    return found


def _side(operator: StepOperator, optimizer_on: Side) -> Side:
    """Return where an operator may compute: only those of the optimizer leave the device."""
    return optimizer_on if operator.phase == "optimizer" else "device"


def _algorithms(measured: Algorithm, side: Side) -> tuple[Algorithm, ...]:
    """Return the ways to compute an operator: as it was measured, on the device, the host or either."""
    on_host = replace(measured, on="host")
    ways: dict[Side, tuple[Algorithm, ...]] = {
        "device": (measured,),
        "host": (on_host,),
        "choose": (measured, on_host),
    }
    return ways[side]


class _Costs:
    """Times of operators and copies: of the record and the link, or of a profile."""

    def __init__(self, link: str | None, profile: Profile | None, batch: int | None) -> None:
        if link is None and profile is None:
            raise PebblerError("give the link between device and host, such as '12GB/s', or a profile")
        self._rates = None if link is None else parse_link(link)
        self._profile = profile
        self._batch = batch

    def copy_ns(self, size: int, direction: Direction) -> int:
        """Return the time of a copy."""
        if self._rates is not None:
            return whole_ns(size / self._rates[direction == "prefetch"])
        assert self._profile is not None
        return self._profile.copy_ns(size, direction)

    def algorithm(self, operator: StepOperator) -> Algorithm:
        """Return an operator as it was measured.

        Its scratch is the larger one of both: on a GPU, libraries do not take the same each time.
        """
        own = Algorithm(
            name=operator.manner,
            duration_ns=operator.duration_ns,
            workspace_bytes=operator.scratch_bytes,
        )
        if self._profile is None:
            return own
        if self._batch is None:
            raise PebblerError("a profile is of certain batch sizes; give the batch")
        (measured, *others) = self._profile.task_algorithms(self._batch, text_of(operator.name))
        if others or measured.name != own.name:
            raise PebblerError(
                f"the profile has '{measured.name}' for '{operator.name}', and the step '{own.name}'; "
                "measure it anew"
            )
        return replace(measured, workspace_bytes=max(measured.workspace_bytes, own.workspace_bytes))


def _block(storage: StepStorage, costs: _Costs, lasting: Lasting, at_end: bool) -> Block:
    """Return the block of a storage.

    Here alone is decided where blocks that outlive a step are when it begins and ends.
    """
    lasts = storage.role in _LASTING
    moves = not lasts or lasting != "resident"
    carried = lasts and lasting == "carried"
    here: Initially = "device" if lasts or storage.role == "input" else "absent"
    return Block(
        name=text_of(storage.name),
        bytes=storage.bytes,
        offload_ns=costs.copy_ns(storage.bytes, "offload") if moves else None,
        prefetch_ns=costs.copy_ns(storage.bytes, "prefetch") if moves else None,
        initially="carried" if carried else here,
        finally_="device" if (lasts and not carried) or at_end else "anywhere",
    )


def _idle(operators: list[StepOperator]) -> set[int]:
    """Return the storages that only operators rewrite which may run again for all that, and leave them alone.

    Who reads one and may run again, such as batch norm's backward pass, does so behind the last of these, so
    that it reads the same again.
    """
    last = {d: k for k, operator in enumerate(operators) for d in operator.idle}
    return last.keys() - {
        d
        for k, operator in enumerate(operators)
        for d in (*operator.reads, *operator.outputs, *operator.updates)
        if d in last and d not in operator.idle
        if d not in operator.reads or (operator.may_run_again and k < last[d])
    }


def _of_optimizer(operators: list[StepOperator]) -> set[int]:
    """Return the storages that operators of the optimizer touch, which may run on the host."""
    return {
        d
        for operator in operators
        if operator.phase == "optimizer"
        for d in (*operator.reads, *operator.outputs, *operator.updates)
    }


def _untaken_gradients(record: StepRecord, operators: list[StepOperator]) -> set[int]:
    """Return the storages of gradients that are what the step is run for: without an optimizer, all."""
    if any(operator.phase == "optimizer" for operator in operators):
        return set()
    return {gradient.storage for gradient in record.gradients.values()}


def _layers(operators: list[StepOperator]) -> tuple[LayerTasks, ...]:
    """List the modules with the tasks of forward and backward pass, in the order of their first ones."""
    tasks: dict[str, tuple[list[int], list[int]]] = {}
    kinds: dict[str, str] = {}
    for k, operator in enumerate(operators):
        if operator.phase in ("forward", "backward"):
            tasks.setdefault(operator.module, ([], []))[operator.phase == "backward"].append(k)
            kinds.setdefault(operator.module, operator.module_kind)
            if operator.overload._schema.name in ("aten::convolution", "aten::convolution_backward"):
                kinds[operator.module] = "conv"
    return tuple(
        LayerTasks(
            name=text_of(module),
            kind=text_of(kinds[module]),
            forward=tuple(forward),
            backward=tuple(backward),
        )
        for module, (forward, backward) in tasks.items()
    )


def _meta(record: StepRecord) -> dict[str, Any]:
    return {
        "source": "recorded from torch, with the optimizer's step",
        "eager_peak_bytes": record.eager_peak_bytes,
        **{key: value for key, value in record.environment.items() if key in ("torch", "threads")},
    }
