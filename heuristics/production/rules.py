"""What frameworks do today, each as a documented rule: which tensors leave, when, and what waits for them.

As in `comparators`, a rule is what its source says, in two sentences. The sources are programs; each rule
names the version that was read. In comparisons, the rules work on an instance whose forward tasks may run
again, where they need it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

from ...instances.instance import Instance
from ...instances.memory import live_bytes, with_budget
from ...instances.units import LARGEST
from ...validate.schedule import Schedule
from ..clock import OutOfTime, limited, look
from ..loading import loads
from ..methods import Answer, Limits, Refusal, register
from ..program.sketch import Sketch
from ..recomputation.plan import NOTHING_AGAIN, Policy, issued, recomputed, restorable, turn
from ..recomputation.rules import planned
from .hooks import Hooks, OnComputeStream, Reloading, Stashing, Synchronous, last_read
from .layer_copies import LEAST_OFFLOADED, Deferred, layer_copies, within
from .modules import modules
from .partition import Partition, load_networkx
from .saved import LayerGroup, Operators, activations, layer_groups, layers_of, saved_by

_LEAST_STASHED = 1024
"""Bytes below which TRL leaves a tensor on the device."""

_STEPS = 20
"""Number of steps in which budgets of torch are tried, from 1 to 0."""

_LEAST_MOVED = 5 * 1024 * 1024
"""Bytes below which DeepCompile leaves a tensor on the device."""


@register(
    "checkpoint-layers",
    "every repeated layer keeps its input alone and runs again in the backward pass",
    "PyTorch's checkpoint around each layer, as transformers and torchtitan ('full') wrap it",
    shown="named",
    transform=planned,
)
@limited
def checkpoint_layers(instance: Instance, limits: Limits) -> Answer:
    """Drop what repeated layers make inside, and compute it again from their inputs.

    Raises
    ------
    Refusal
        When no layers repeat, nothing can be computed again, or there is no room.
    """
    policy = Policy(_dropped(instance, layer_groups(instance)))
    return Answer(recomputed(instance, limits, policy, "checkpoint-layers"))


@register(
    "torchtitan-selective",
    "as checkpoint-layers, but outputs of attention and of every second linear operator are kept",
    "torchtitan, selective activation checkpointing by operator",
    shown="named",
    transform=planned,
)
@limited
def torchtitan_selective(instance: Instance, limits: Limits) -> Answer:
    """Compute repeated layers again, except attention and the first, third, ... linear operator of each.

    A router counts for none, and products with the weights of experts always run again.

    Raises
    ------
    Refusal
        As `checkpoint_layers`.
    """
    groups, operators = layer_groups(instance), Operators(instance)
    kept = set[int]()
    for group in groups:
        count = 0
        for k in group.forward:
            count += (linear := operators.is_linear(k) and not operators.is_router(k))
            if operators.is_attention(k) or (linear and count % 2):
                kept.update(instance.tasks[k].outputs)
    policy = Policy(_dropped(instance, groups) - kept, saved=kept)
    return Answer(recomputed(instance, limits, policy, "torchtitan-selective"))


@register(
    "torchtitan-offload",
    "as checkpoint-layers, with outputs of linear operators, attention and layers on the host",
    "torchtitan, graph_trainer: memory_policy sac_and_offload",
    shown="named",
    transform=planned,
)
@limited
def torchtitan_offload(instance: Instance, limits: Limits) -> Answer:
    """Compute cheap operators of repeated layers again, and offload what the backward pass reads of the rest.

    A tensor is copied out once it is made, and compute waits for that at the end of the next layer, or of the
    last one that reads it. It comes back when the backward pass begins with the layer after its own. What the
    last layer makes stays, and so does what is read only to compute again. Routers and products with the
    weights of experts run again. Where host memory ends, the
    largest tensors leave that it has room for.

    Raises
    ------
    Refusal
        As `checkpoint_layers`; when a tensor cannot be copied.
    """
    groups, operators = layer_groups(instance), Operators(instance)
    kept = {
        d
        for group in groups
        for k in group.forward
        if (operators.is_linear(k) and not operators.is_router(k)) or operators.is_attention(k)
        for d in instance.tasks[k].outputs
    }
    dropped = _dropped(instance, groups) - kept
    layer_of = {k: i for i, group in enumerate(groups[:-1]) for k in group.forward}
    leaving = [d for d in activations(instance) if instance.writers[d][0] in layer_of and d not in dropped]
    hosted = within(instance, [d for d in leaving if instance.blocks[d].bytes >= LEAST_OFFLOADED])
    copies = layer_copies(instance, groups, hosted)
    policy = Policy(dropped, set(hosted), kept, copies.ahead)
    schedule = issued(
        instance,
        limits,
        "torchtitan-offload",
        lambda builder, most: Deferred(builder, policy, most, copies),
        one_copy_queue=True,
    )
    return Answer(schedule)


@register(
    "torch-compile",
    "a minimum cut between the passes is saved; what is cheap is computed again from it",
    "PyTorch, the min-cut partitioner of torch.compile",
    shown="named",
    transform=planned,
)
@loads(load_networkx)
@limited
def torch_compile(instance: Instance, limits: Limits) -> Answer:
    """Save the blocks of a minimum cut, and compute all others again that the backward pass reads.

    Products, convolutions and attention are not computed again.

    Raises
    ------
    Refusal
        When there is no room.
    """
    partition = Partition(instance)
    policy = _partitioned(partition, partition.most)
    return Answer(recomputed(instance, limits, policy, "torch-compile"))


@register(
    "torch-memory-budget",
    "as torch-compile, with the greatest activation_memory_budget that fits: a knapsack chooses what is kept",
    "PyTorch, torch._functorch.config.activation_memory_budget",
    shown="named",
    transform=planned,
)
@loads(load_networkx)
@limited
def torch_memory_budget(instance: Instance, limits: Limits) -> Answer:
    """Try budgets of 1, 0.95, 0.9, ... of what torch.compile saves, and take the first that has room.

    Within a budget, a knapsack says of which products, convolutions and attention the results are kept: its
    values are their times. The others are computed again, too, and the cut is made anew.

    Raises
    ------
    Refusal
        When there is no room even at a budget of 0.
    """
    partition = Partition(instance)
    reason = ""
    tried = list[set[int]]()
    for step in range(_STEPS, -1, -1):
        look()
        saved = partition.within(step / _STEPS)
        if saved in tried:
            continue
        tried.append(saved)
        try:
            policy = _partitioned(partition, saved)
            return Answer(recomputed(instance, limits, policy, "torch-memory-budget"))
        except OutOfTime:
            raise
        except Refusal as refusal:
            reason = str(refusal)
    raise Refusal(reason)


@register(
    "transformers-offload",
    "as checkpoint-layers, with the layers' inputs on the host; copies are on the stream of the computation",
    "transformers 5.17, gradient_checkpointing_kwargs={'offload': True}: torch's save_on_cpu",
    shown="named",
    transform=planned,
)
@limited
def transformers_offload(instance: Instance, limits: Limits) -> Answer:
    """Copy repeated layers' inputs out before they run, and back before they run again; compute waits.

    Raises
    ------
    Refusal
        As `checkpoint_layers`; when an input cannot be copied.
    """
    groups = layer_groups(instance)
    packed = _packed(instance, groups)
    policy = Policy(_dropped(instance, groups), packed.keys())
    schedule = issued(
        instance,
        limits,
        "transformers-offload",
        lambda builder, most: OnComputeStream(builder, policy, most, packed),
    )
    return Answer(schedule)


@register(
    "hidden-states-offload",
    "as transformers-offload on a side stream; a layer's input comes back while the layer after it runs",
    "VeOmni, async_save_on_cpu outside of checkpoints; axolotl, activation_offloading: hidden_states",
    shown="named",
    transform=planned,
)
@limited
def hidden_states_offload(instance: Instance, limits: Limits) -> Answer:
    """Copy layers' inputs out while they run, and back while the backward pass is at the layer after them.

    Raises
    ------
    Refusal
        As `checkpoint_layers`; when an input cannot be copied.
    """
    groups = layer_groups(instance)
    packed = _packed(instance, groups)
    ahead = {
        after.backward[0]: (*after.inputs, *before.inputs)
        for before, after in pairwise(groups)
        if after.backward
    }
    policy = Policy(_dropped(instance, groups), packed.keys(), ahead=ahead)
    schedule = issued(
        instance,
        limits,
        "hidden-states-offload",
        lambda builder, most: Hooks(builder, policy, most, packed),
        one_copy_queue=True,
    )
    return Answer(schedule)


@register(
    "trl-offload",
    "every saved tensor leaves on a side stream; it comes back while the node before its own runs",
    "TRL, activation_offloading, after torchtune's OffloadActivations",
    shown="named",
)
@limited
def trl_offload(instance: Instance, limits: Limits) -> Answer:
    """Copy out every tensor that is saved, but for those of the last linear layer and of less than 1 KiB.

    A tensor that several layers save is copied out for the first of them, and stays on the device for the
    others.

    Raises
    ------
    Refusal
        When a tensor cannot be copied, or there is no room.
    """
    savers, operators, end = saved_by(instance), Operators(instance), turn(instance)
    linear = [one for one in layers_of(instance) if any(map(operators.is_linear, one.forward))]
    head = linear[-1].name if linear else ""
    packed, hosted, let_go = {}, set(), dict[int, list[int]]()
    for d, by in savers.items():
        k, first = by[0]
        if first.name == head or instance.blocks[d].bytes < _LEAST_STASHED:
            continue
        packed[d] = k
        others = [use for use in instance.uses[d] if use >= end and use not in first.backward]
        if not others:
            hosted.add(d)
        elif instance.uses[d][-1] > others[-1]:
            let_go.setdefault(others[-1], []).append(d)
    policy = Policy(hosted=hosted)
    schedule = issued(
        instance,
        limits,
        "trl-offload",
        lambda builder, most: Stashing(builder, policy, most, packed, let_go),
        one_copy_queue=True,
    )
    return Answer(schedule)


@register(
    "megatron-offload",
    "norms, attention, its projections and experts offload what they save; it comes back a layer ahead",
    "Megatron-LM, --fine-grained-activation-offloading",
    shown="named",
)
@limited
def megatron_offload(instance: Instance, limits: Limits) -> Answer:
    """Copy out what modules of repeated layers save, but for the last of each kind.

    When a module's backward pass has ended, what the last module has saved that is not yet back comes back:
    so it has a layer's modules of time. Compute waits for no copy out.

    Raises
    ------
    Refusal
        When no layers repeat, a tensor cannot be copied, or there is no room.
    """
    parts = modules(instance)
    last_of = {part.kind: part for part in parts}
    away = [part for part in parts if part is not last_of[part.kind]]
    read = last_read(instance, [d for part in away for d in part.saved])
    packed = {d: min(part.last_forward, read[d]) for part in away for d in part.saved}
    ahead: dict[int, tuple[int, ...]] = {}
    for ended, back in zip(reversed(parts), reversed(away), strict=False):
        after = ended.last_backward + 1
        ahead[after] = (*ahead.get(after, ()), *back.saved)
    policy = Policy(hosted=packed.keys(), ahead=ahead)
    schedule = issued(
        instance,
        limits,
        "megatron-offload",
        lambda builder, most: Reloading(builder, policy, most, packed),
    )
    return Answer(schedule)


@register(
    "deepcompile-offload",
    "all saved tensors leave, then the largest stay as far as they fit; compute waits for each copy out",
    "DeepSpeed's DeepCompile, passes/offload_activation.py",
    shown="named",
)
@limited
def deepcompile_offload(instance: Instance, limits: Limits) -> Answer:
    """Offload every saved tensor of 5 MiB or more after its last use, and keep the largest that have room.

    A tensor comes back so many tasks before its first use as its copy takes, as long as what those tasks
    would hold without offloading, all that came back before, and the tensor together fit the budget. If
    memory runs out nevertheless, smaller tensors leave, too.

    Raises
    ------
    Refusal
        When a tensor cannot be copied, or there is no room even with all of them on the host.
    """
    saved = activations(instance)
    large = [d for d in saved if instance.blocks[d].bytes >= _LEAST_MOVED]
    try:
        return Answer(_moved_out(instance, limits, large))
    except OutOfTime:
        raise
    except Refusal:
        if len(large) == len(saved):
            raise
    return Answer(_moved_out(instance, limits, saved))


def _moved_out(instance: Instance, limits: Limits, moved: list[int]) -> Schedule:
    """Return DeepCompile's program where some tensors may leave."""
    moved = sorted(moved, key=lambda d: -instance.blocks[d].bytes)
    room = instance.pool_bytes - _floor(instance, moved)
    for d in tuple(moved):
        if instance.blocks[d].bytes <= room:
            room -= instance.blocks[d].bytes
            moved.remove(d)
    packed = last_read(instance, moved)
    policy = Policy(hosted=packed.keys(), ahead=_hoisted(instance, moved))
    return issued(
        instance,
        limits,
        "deepcompile-offload",
        lambda builder, most: Synchronous(builder, policy, most, packed),
    )


def _partitioned(partition: Partition, saved: set[int]) -> Policy:
    """Return the policy that keeps what a cut has saved."""
    return Policy((partition.read & partition.once) - saved, saved=saved, once=True)


def _dropped(instance: Instance, groups: Sequence[LayerGroup]) -> set[int]:
    """Return what groups make inside and can make again.

    Raises
    ------
    Refusal
        When there is no such block.
    """
    again = restorable(instance)
    found = {d for group in groups for d in group.inside if d in again}
    if not found:
        raise Refusal(NOTHING_AGAIN)
    return found


def _packed(instance: Instance, groups: Sequence[LayerGroup]) -> dict[int, int]:
    """Return, for the input of each group, the task after which the group begins."""
    end = turn(instance)
    return {
        d: max(group.forward[0] - 1, *(k for k in instance.writers[d] if k < end))
        for group in groups
        for d in group.inputs
    }


def _floor(instance: Instance, moved: Sequence[int]) -> int:
    """Return the peak with some blocks on the host, in bytes of the pool."""
    sketch = Sketch(with_budget(instance, LARGEST))
    packed = last_read(instance, moved)
    Synchronous(sketch, Policy(hosted=packed.keys()), 0, packed).all()
    return sketch.peak_bytes


def _hoisted(instance: Instance, moved: Sequence[int]) -> dict[int, tuple[int, ...]]:
    """Return, per task, the blocks that come back when it starts."""
    end = turn(instance)
    held = live_bytes(instance)
    times = [min(a.duration_ns for a in task.algorithms) for task in instance.tasks]
    upto = [0, *accumulate(times)]
    ahead: dict[int, tuple[int, ...]] = {}
    back = 0
    for d in sorted(moved, key=lambda d: next(k for k in instance.uses[d] if k >= end)):
        first = at = next(k for k in instance.uses[d] if k >= end)
        size = instance.blocks[d].bytes
        while at > end and held[at - 1] + back + size <= instance.pool_bytes:
            at -= 1
            if upto[first] - upto[at] >= (instance.blocks[d].prefetch_ns or 0):
                break
        ahead[at] = (*ahead.get(at, ()), d)
        back += size
    return ahead
