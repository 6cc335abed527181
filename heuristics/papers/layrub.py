"""Layrub (Jin et al., TACO 2018): memory reused within layers, across layers, and both.

The intra-layer strategy writes a gradient over the data that it belongs to. The inter-layer strategy offloads
data when no later layer of the forward pass refers to it, and loads it one layer ahead, into a few fixed
regions. The hybrid strategy does both. Comparisons let all three work on an instance with the
memory-efficient ReLU (`planned`).
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from ...instances.instance import Instance
from ...instances.transforms import has_been, with_mask
from ..carried import ends_on_device
from ..choices import fastest_within
from ..clock import limited
from ..methods import Answer, Limits, Refusal, register
from ..program.builder import OutOfMemoryError, ProgramBuilder
from ..program.regions import Groups, alone, build_in_regions, largest_first
from .layers import layer_steps
from .layerwise import Execution, next_layer, offload_points, passes

CAFFE_WORKSPACE = 8 * 2**20
"""Greatest workspace that Caffe lets cuDNN use for a convolution, in bytes.

Source: the comment on Caffe2's own limit, which names the limit of Caffe.
"""

BARRIER = Fraction(305, 10_000)
"""Relative increase of a convolution's backward pass when the gradients of weights and data do not overlap.

Tasks never overlap in pebbler, so that no duration contains this share (section 4.3: "about 3.05%" on a K40).
"""

_SOURCE = "Layrub (TACO 2018)"
"""Name of the paper."""


def planned(instance: Instance) -> Instance:
    """Return the instance that Layrub schedules in a comparison, with the memory-efficient ReLU if possible.

    This is possible where a ReLU has a task of its own, tensors are whole, and there is no mask yet (section
    4.2).
    """
    relus = any(layer.kind == "relu" for layer in instance.named_layers)
    whole = all(block.tensor is None for block in instance.blocks)
    return with_mask(instance) if relus and whole and not has_mask(instance) else instance


def has_mask(instance: Instance) -> bool:
    """Return whether the memory-efficient ReLU has been applied to an instance."""
    return has_been(instance, "mask")


@register(
    "layrub-intra",
    "a gradient takes the place of its data; everything has a place of its own",
    f"{_SOURCE}, section 3.2",
    shown="named",
    transform=planned,
    carries="read",
)
@limited
def layrub_intra(instance: Instance, limits: Limits) -> Answer:
    """Allocate statically, and write each gradient over its data if the data is dead by then.

    The signs that the memory-efficient ReLU keeps are on the host between the passes, and come back one task
    ahead (section 4.2). Copies wait only for data.

    Raises
    ------
    Refusal
        When the places do not fit.
    """
    algorithms, partner, signs = caffe_algorithms(instance), gradients(instance), _signs(instance)
    builder = ProgramBuilder(instance, memory=limits.memory)
    try:
        for k, task in enumerate(instance.tasks):
            ahead = instance.tasks[k + 1].inputs if k + 1 < len(instance.tasks) else ()
            builder.fetch(d for d in (*task.inputs, *task.updates, *ahead) if builder.on_host(d))
            at = {
                d: offset
                for d in task.outputs
                if (offset := _take_over(builder, partner.get(d), k)) is not None
            }
            builder.run(k, algorithms[k], at=at)
            for d in task.outputs:
                if d in signs:
                    builder.offload(d)
                    builder.release(d)
        return Answer(builder.finish("layrub-intra"))
    except OutOfMemoryError as error:
        raise Refusal(f"{error}; everything has a place of its own") from None


@register(
    "layrub-inter",
    "data leaves when no layer refers to it and comes back a layer ahead, in fixed regions",
    f"{_SOURCE}, section 3.3",
    shown="named",
    transform=planned,
    carries="read",
)
@limited
def layrub_inter(instance: Instance, limits: Limits) -> Answer:
    """Offload all data, and reuse regions across layers; a layer's memory is released when the layer ends."""
    return _migrating(instance, limits, "layrub-inter", alone, at_once=False)


@register(
    "layrub-hybrid",
    "both: gradients take the place of their data, data leaves and comes back a layer ahead",
    f"{_SOURCE}, section 3.4",
    shown="named",
    transform=planned,
    carries="read",
)
@limited
def layrub_hybrid(instance: Instance, limits: Limits) -> Answer:
    """Reuse regions across layers, and within a layer as soon as its data is dead."""
    return _migrating(instance, limits, "layrub-hybrid", in_place, at_once=True)


def caffe_algorithms(instance: Instance) -> list[int]:
    """Return, per task, the fastest algorithm with a workspace that Caffe allows, else the leanest one."""
    return [fastest_within(task, CAFFE_WORKSPACE) for task in instance.tasks]


def gradients(instance: Instance) -> dict[int, int]:
    """Return, for each gradient, the data that it is the gradient of.

    A gradient is written by a layer's backward tasks. Its data is read by the layer's forward tasks. Both
    have the same size and come in the same order.
    """
    partner: dict[int, int] = {}
    for layer in instance.named_layers:
        data = list(dict.fromkeys(d for k in layer.forward for d in instance.tasks[k].inputs))
        for d in (d for k in layer.backward for d in instance.tasks[k].outputs):
            like = [x for x in data if instance.blocks[x].bytes == instance.blocks[d].bytes]
            if like:
                partner[d] = like[0]
                data.remove(like[0])
    return partner


def in_place(builder: ProgramBuilder) -> list[int]:
    """Group the last stay of data with that of its gradient, if the gradient is written over dead data."""
    instance = builder.instance
    unit_of = [u for u, unit in enumerate(layer_steps(instance)) for _ in unit.tasks]
    together = {
        gradient: data
        for gradient, data in gradients(instance).items()
        if unit_of[instance.uses[data][-1]] == unit_of[instance.writers[gradient][0]]
    }
    return over_dead(builder, together)


def over_dead(builder: ProgramBuilder, over: Mapping[int, int]) -> list[int]:
    """Return, per placement, itself, or the last placement of the dead data over which a gradient lies.

    Parameters
    ----------
    builder
        The program.
    over
        For each gradient that may lie over data, that data.
    """
    blocks, lives = builder.placements(), builder.lifetimes()
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for i, d in enumerate(blocks):
        if d is not None:
            first.setdefault(d, i)
            last[d] = i
    groups = list(range(len(blocks)))
    for gradient, data in over.items():
        if gradient in first and data in last and lives[last[data]][2] <= lives[first[gradient]][1]:
            groups[first[gradient]] = last[data]
    return groups


def _migrating(instance: Instance, limits: Limits, name: str, groups: Groups, *, at_once: bool) -> Answer:
    """Schedule by the inter-layer strategy (algorithm 1)."""
    both_ways, algorithms = passes(instance), caffe_algorithms(instance)
    leaves_at = offload_points(instance, layer_steps(instance), lambda _: True, unread=True)

    def issue(builder: ProgramBuilder) -> None:
        Execution(instance, builder, both_ways, leaves_at, algorithms, next_layer, at_once=at_once).all()

    return Answer(build_in_regions(instance, limits.memory, issue, groups, largest_first).finish(name))


def _take_over(builder: ProgramBuilder, data: int | None, task: int) -> int | None:
    """Release data that is dead before a task, and return its offset if a gradient can be put there."""
    if data is None or not builder.is_resident(data) or builder.instance.uses[data][-1] >= task:
        return None
    block, (offset, _) = builder.instance.blocks[data], builder.ranges_of(data)[0]
    builder.retire(data)
    alone_there = builder.memory == "contiguous" and block.tensor is None and not ends_on_device(block)
    return offset if alone_there else None


def _signs(instance: Instance) -> set[int]:
    """Return the blocks that hold the signs for the ReLUs' backward tasks, where there is a mask."""
    if not has_mask(instance):
        return set()
    relus = (layer for layer in instance.named_layers if layer.kind == "relu")
    return {d for layer in relus for k in layer.backward for d in instance.tasks[k].inputs}
