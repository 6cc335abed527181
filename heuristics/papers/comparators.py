"""The systems that Layrub's tables compare with, each as a documented rule.

These rules do not reproduce the papers or the code of these systems. A rule is what the sources say of the
policy in
two sentences, on our instances, so every name ends in ``-rule``. Docs: docs/comparators.md.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Sequence
from itertools import pairwise

from ...instances.instance import Instance
from ...instances.memory import with_budget
from ...instances.units import ceil_to, format_size
from ..carried import begins_on_device
from ..choices import run_fastest
from ..clock import limited
from ..methods import Answer, Limits, Refusal, register
from ..program.builder import OutOfMemoryError, ProgramBuilder
from ..program.placement import build_program
from ..program.regions import alone, build_in_regions, in_order
from ..recomputation.plan import fastest_with_room, turn, used_later
from .layerwise import Execution, next_layer, passes
from .layrub import caffe_algorithms


@register(
    "caffe-rule",
    "no offload: all data and gradients have places of their own for the whole iteration",
    "Layrub (TACO 2018), Table 2: a whole network (d+g)",
    shown="named",
    carries="read",
)
@limited
def caffe(instance: Instance, limits: Limits) -> Answer:
    """Allocate data and gradients for the whole network, with workspaces of at most 8 MiB.

    Raises
    ------
    Refusal
        When the blocks do not fit.
    """
    algorithms, everything = caffe_algorithms(instance), range(len(instance.blocks))
    builder = ProgramBuilder(instance, memory=limits.memory)
    return _in_order(builder, "caffe-rule", algorithms, everything)


@register(
    "tensorflow-rule",
    "no offload: memory by liveness, best fit with coalescing, the fastest algorithms that have room",
    "Layrub (TACO 2018), Table 2: best fit with coalescing",
    shown="named",
    carries="read",
)
@limited
def tensorflow(instance: Instance, limits: Limits) -> Answer:
    """Give each block the smallest hole that is large enough, and free it after its last use.

    Raises
    ------
    Refusal
        When no hole is large enough.
    """
    return _in_order(ProgramBuilder(instance, memory=limits.memory), "tensorflow-rule", None, ())


@register(
    "mxnet-rule",
    "no offload: static regions, shared by blocks that never live together (graph colouring)",
    "MXNet's memory plan; Chen et al., arXiv 1604.06174, section 3",
    shown="named",
    carries="read",
)
@limited
def mxnet(instance: Instance, limits: Limits) -> Answer:
    """Colour blocks in the order of time: each takes the free region nearest in size, or opens one.

    Raises
    ------
    Refusal
        When the regions do not fit.
    """
    algorithms = caffe_algorithms(instance)

    def issue(builder: ProgramBuilder) -> None:
        for k in range(len(instance.tasks)):
            builder.fetch((*instance.tasks[k].inputs, *instance.tasks[k].updates))
            builder.run(k, algorithms[k])
            builder.release_dead(k)

    return Answer(build_in_regions(instance, limits.memory, issue, alone, in_order).finish("mxnet-rule"))


@register(
    "geeps-rule",
    "two buffers of the largest layer: one computes, the other is emptied and filled",
    "GeePS (EuroSys 2016), as Layrub (TACO 2018), section 5.3.1, describes it",
    shown="named",
    carries="read",
)
@limited
def geeps(instance: Instance, limits: Limits) -> Answer:
    """Offload every block that neither this layer nor the next uses, gradients too, and load one layer ahead.

    The pool has room for twice the blocks and workspace of the largest layer, and for the network's inputs.

    Raises
    ------
    Refusal
        When the pool does not fit, or fragments.
    """
    layers, algorithms = passes(instance), caffe_algorithms(instance)
    at = [index for index, layer in enumerate(layers) for _ in layer.unit.tasks]
    leaves: dict[int, list[int]] = {}
    for d, block in enumerate(instance.blocks):
        for here, there in pairwise(sorted({at[k] for k in instance.uses[d]})):
            if there > here + 1 and block.offload_ns is not None and block.prefetch_ns is not None:
                leaves.setdefault(here, []).append(d)
    buffers = geeps_pool_bytes(instance)
    if buffers > instance.pool_bytes:
        raise Refusal(
            f"the inputs and two buffers of the largest layer take {format_size(buffers)}, "
            f"of a pool of {format_size(max(instance.pool_bytes, 0))}"
        )

    def issue(builder: ProgramBuilder) -> None:
        Execution(instance, builder, layers, leaves, algorithms, next_layer).all()

    pool = with_budget(instance, instance.resident_bytes + buffers)
    return Answer(build_program(pool, limits.memory, issue, one_copy_queue=True).finish("geeps-rule"))


def geeps_pool_bytes(instance: Instance) -> int:
    """Return the bytes of GeePS's pool: two buffers of the largest layer, and the network's inputs."""
    algorithms = caffe_algorithms(instance)
    sizes = [ceil_to(block.bytes, instance.alignment_bytes) for block in instance.blocks]
    largest = max(
        sum(sizes[d] for d in {*layer.needs, *layer.writes})
        + max(instance.tasks[k].algorithms[algorithms[k]].workspace_bytes for k in layer.unit.tasks)
        for layer in passes(instance)
    )
    inputs = sum(sizes[d] for d, block in enumerate(instance.blocks) if begins_on_device(block))
    return 2 * ceil_to(largest, instance.alignment_bytes) + inputs


@register(
    "save-on-cpu-rule",
    "all that is saved for the backward pass goes to the host at once; no copy overlaps anything",
    "torch.autograd.graph.save_on_cpu",
    shown="named",
    carries="read",
)
@limited
def save_on_cpu(instance: Instance, limits: Limits) -> Answer:
    """Copy what the backward pass reads to the host when it is made, and back each time a layer reads it.

    Computation waits for every copy. Each task runs the fastest algorithm that has room.

    Raises
    ------
    Refusal
        When there is no room.
    """
    saved = {
        d
        for d in used_later(instance, range(len(instance.blocks)))
        if instance.blocks[d].prefetch_ns is not None
        and (instance.blocks[d].offload_ns is not None or not instance.writers[d])
    }
    end = turn(instance)
    goes: dict[int, set[int]] = defaultdict(set)
    for d in saved:
        goes[max(k for k in instance.uses[d] if k < end)].add(d)
    for layer in passes(instance):
        if layer.unit.tasks[0] >= end:
            goes[layer.unit.tasks[-1]] |= saved.intersection(layer.needs)

    def issue(builder: ProgramBuilder) -> None:
        before: list[int] = []
        for k, task in enumerate(instance.tasks):
            before += builder.fetch((*task.inputs, *task.updates), before)
            run = builder.run(k, fastest_with_room(builder, k), before)
            made = [d for d in (*task.outputs, *task.updates) if d in saved and instance.writers[d][-1] == k]
            before = [run, *(builder.offload(d) for d in made)]
            builder.release_dead(k)
            for d in sorted(goes[k]):
                if builder.is_resident(d):
                    builder.release(d)

    return Answer(build_program(instance, limits.memory, issue).finish("save-on-cpu-rule"))


def _in_order(
    builder: ProgramBuilder, name: str, algorithms: Sequence[int] | None, keep: Container[int]
) -> Answer:
    """Run all tasks without offload; by default with the fastest algorithms that have room.

    Blocks in `keep` are on the device for the whole iteration.
    """
    try:
        for k, task in enumerate(builder.instance.tasks):
            builder.fetch((*task.inputs, *task.updates))
            if algorithms is None:
                run_fastest(builder, k)
            else:
                builder.run(k, algorithms[k])
            builder.release_dead(k, keep)
        return Answer(builder.finish(name))
    except OutOfMemoryError as error:
        raise Refusal(f"{error} at task {builder.instance.tasks[k].name}") from None
