"""Tiny instances for exhaustive search: training chains and forks, with sizes of a few units."""

from __future__ import annotations

from random import Random
from typing import Literal

import msgspec

from ..gpus.cluster import Cluster, Gradient
from ..instance import Algorithm, Block, Instance, Link, Slowdown, Task
from ..memory import least_budget, unlimited_peak


def tiny_instance(
    seed: int,
    *,
    carried: bool = False,
    host_budget: bool = False,
    link: bool = False,
    slowdown: bool = False,
    host_work: bool = False,
) -> Instance:
    """Return a chain or fork of two or three layers with its backward pass, and a tight budget.

    Sizes are a few units of four bytes, so that places can be enumerated. Some instances have in-place
    updates, parts, one copy engine, inputs on the host, moves inside the device, recomputable tasks or null
    times.

    Parameters
    ----------
    seed
        Names the instance.
    carried
        Whether one layer or two have weights that rounds carry, and that the backward pass reads or updates.
    host_budget
        Whether host memory has a budget: a place for none up to all blocks.
    link
        Whether copies in both directions share a link, which often is too slow for two.
    slowdown
        Whether copies slow some tasks down.
    host_work
        Whether some tasks may run on the host, or have to.
    """
    instance = _chain_or_fork(Random(seed))
    instance = msgspec.structs.replace(instance, name=f"tiny-{seed}")
    if carried:
        instance = _with_weights(instance, Random(f"carried {seed}"))
    if host_work:
        instance = _with_host_work(instance, Random(f"host work {seed}"))
    if link:
        rate = Random(f"link {seed}").choice((1, 2, 2, 3, 3, 5)) * 10**9
        instance = msgspec.structs.replace(instance, link=Link(both_bytes_per_second=rate))
    if slowdown:
        instance = _with_slowdown(instance, Random(f"slowdown {seed}"))
    if host_budget:
        places = Random(f"host {seed}").randint(0, len(instance.blocks))
        instance = msgspec.structs.replace(instance, host_budget_bytes=512 * places)
    return instance


def _chain_or_fork(rng: Random) -> Instance:
    layers = rng.choice((2, 2, 3))
    fork = layers == 3 and rng.random() < 0.4
    with_moves = layers == 2 and rng.random() < 0.3
    recomputes = layers == 2 and rng.random() < 0.4
    split = layers == 2 and not with_moves and rng.random() < 0.5
    blocks: list[Block] = []
    tasks: list[Task] = []

    def block(
        name: str, units: int, initially: Literal["absent", "device", "host"] = "absent", whole: bool = True
    ) -> tuple[int, ...]:
        counts = [units] if whole or units < 2 else [units // 2, units - units // 2]
        made = []
        for part, count in enumerate(counts):
            parts = len(counts) > 1
            blocks.append(
                Block(
                    name=f"{name}.{part}" if parts else name,
                    bytes=4 * count - rng.choice((0, 0, 0, 1)),
                    offload_ns=None if rng.random() < 0.1 else count * rng.choice((1, 2, 2, 3)),
                    prefetch_ns=count * rng.choice((1, 2, 2)),
                    move_ns=1 if with_moves else None,
                    initially=initially,
                    tensor=name if parts else None,
                    begin=4 * counts[0] * part if parts else None,
                )
            )
            made.append(len(blocks) - 1)
        return tuple(made)

    def algorithms() -> tuple[Algorithm, ...]:
        slow = rng.randint(1, 6)
        plain = Algorithm(name="plain", duration_ns=slow, workspace_bytes=0)
        if slow == 1 or rng.random() < 0.6:
            return (plain,)
        fast = Algorithm(
            name="fast", duration_ns=rng.randint(0, slow - 1), workspace_bytes=4 * rng.randint(1, most - 1)
        )
        return plain, fast

    most = 5 - layers
    x = block("X", rng.randint(1, most), rng.choice(("device", "device", "host")))
    outputs = [x]
    source = 0
    for layer in range(layers):
        if not (fork and layer == 2):
            source = layer
        y = block(f"Y{layer}", rng.randint(1, most), whole=not split)
        tasks.append(
            Task(
                name=f"F{layer}",
                inputs=outputs[source],
                outputs=y,
                algorithms=algorithms(),
                recomputable=recomputes and rng.random() < 0.6,
            )
        )
        outputs.append(y)
    gradient = block("dY", rng.randint(1, most - 1))
    tasks.append(Task(name="loss", inputs=outputs[-1], outputs=gradient, algorithms=algorithms()))
    for layer in reversed(range(1, layers)):
        if rng.random() < 0.4:
            read = outputs[layer + 1]
            tasks.append(
                Task(name=f"R{layer}", inputs=read, outputs=(), updates=gradient, algorithms=algorithms())
            )
        following = block(f"dX{layer}", rng.randint(1, most - 1))
        read = (*outputs[layer], *gradient)
        tasks.append(Task(name=f"B{layer}", inputs=read, outputs=following, algorithms=algorithms()))
        gradient = following
    tasks.append(Task(name="B0", inputs=(*outputs[0], *gradient), outputs=(), algorithms=algorithms()))
    instance = Instance(
        name="tiny",
        engines=rng.choice(("duplex", "duplex", "single")),
        budget_bytes=2**40,
        resident_bytes=rng.choice((0, 5)),
        alignment_bytes=4,
        blocks=tuple(blocks),
        tasks=tuple(tasks),
    )
    return _tight(instance, rng)


def _tight(instance: Instance, rng: Random) -> Instance:
    """Return the instance with a budget between its least one and its peak, a few units above the former."""
    least, peak = least_budget(instance), unlimited_peak(instance)
    budget = least + 4 * rng.randint(0, min(max((peak - least) // 4, 0), 3))
    return msgspec.structs.replace(instance, budget_bytes=budget)


def _with_weights(instance: Instance, rng: Random) -> Instance:
    """Return the instance with one or two weights, which rounds carry; the input may be carried, too."""
    blocks, tasks = list(instance.blocks), list(instance.tasks)
    layers = [task.name[1:] for task in tasks if task.name[0] == "F"]
    if rng.random() < 0.25:
        blocks[0] = msgspec.structs.replace(blocks[0], initially="carried")
    count = rng.choice((1, 1, 2)) if len(layers) == 2 else 1
    for layer in sorted(rng.sample(layers, count)):
        units, weight = rng.choice((1, 1, 2)), len(blocks)
        blocks.append(
            Block(
                name=f"W{layer}",
                bytes=4 * units - rng.choice((0, 0, 0, 1)),
                offload_ns=None if rng.random() < 0.15 else units * rng.choice((0, 1, 2, 3)),
                prefetch_ns=None if rng.random() < 0.15 else units * rng.choice((1, 2, 2)),
                move_ns=blocks[-1].move_ns,
                initially="carried",
            )
        )
        use = rng.choice(("updates", "updates", "inputs"))
        for k, task in enumerate(tasks):
            if task.name in (f"F{layer}", f"B{layer}"):
                touch = use if task.name[0] == "B" else "inputs"
                tasks[k] = msgspec.structs.replace(task, **{touch: (*getattr(task, touch), weight)})
    changed = msgspec.structs.replace(instance, blocks=tuple(blocks), tasks=tuple(tasks), budget_bytes=2**40)
    return _tight(changed, rng)


def _with_host_work(instance: Instance, rng: Random) -> Instance:
    """Return the instance with one or two tasks of the backward pass that may or must run on the host."""
    tasks = list(instance.tasks)
    backward = [k for k, task in enumerate(tasks) if not task.recomputable and task.name[0] != "F"]
    for k in sorted(rng.sample(backward, rng.randint(1, min(2, len(backward))))):
        slow = rng.randint(1, 8)
        scratch = rng.choice((0, 0, 4))
        on_host = Algorithm(name="host", duration_ns=slow, workspace_bytes=scratch, on="host")
        on_device = () if rng.random() < 0.25 else tasks[k].algorithms
        tasks[k] = msgspec.structs.replace(tasks[k], algorithms=(*on_device, on_host))
    return msgspec.structs.replace(instance, tasks=tuple(tasks))


def _with_slowdown(instance: Instance, rng: Random) -> Instance:
    """Return the instance with tasks that copies slow down, the first one at least."""
    tasks = [
        msgspec.structs.replace(
            task,
            slowdown_ppm=Slowdown(
                offload=rng.choice((100_000, 250_000, 500_000)), prefetch=rng.choice((0, 250_000, 500_000))
            ),
        )
        if not k or rng.random() < 0.7
        else task
        for k, task in enumerate(instance.tasks)
    ]
    return msgspec.structs.replace(instance, tasks=tuple(tasks))


def plain(seed: int) -> Instance:
    """Return a tiny instance whose tasks run once."""
    instance = tiny_instance(seed)
    tasks = tuple(msgspec.structs.replace(task, recomputable=False) for task in instance.tasks)
    return msgspec.structs.replace(instance, tasks=tasks)


def twisted(seed: int) -> Instance:
    """Return a tiny instance with places at the end, null times, and operations that take no time."""
    rng = Random(seed)
    instance = plain(seed)
    blocks = []
    for block in instance.blocks:
        offload_ns, prefetch_ns = block.offload_ns, block.prefetch_ns
        blocks.append(
            msgspec.structs.replace(
                block,
                offload_ns=rng.choice((offload_ns, offload_ns, offload_ns, 0, None)),
                prefetch_ns=rng.choice((prefetch_ns, prefetch_ns, prefetch_ns, 0, None)),
                finally_=rng.choice(("anywhere", "anywhere", "anywhere", "host", "device")),
                initially=rng.choice(("device", "host")) if block.initially != "absent" else "absent",
            )
        )
    tasks = []
    for task in instance.tasks:
        algorithms = tuple(
            msgspec.structs.replace(a, duration_ns=rng.choice((a.duration_ns, a.duration_ns, 0)))
            for a in task.algorithms
        )
        tasks.append(msgspec.structs.replace(task, algorithms=algorithms))
    return msgspec.structs.replace(
        instance,
        blocks=tuple(blocks),
        tasks=tuple(tasks),
        budget_bytes=instance.budget_bytes + 4 * rng.randint(0, 3),
    )


def recomputing(seed: int, *, parts: bool = False) -> Instance:
    """Return a tiny instance many of whose tasks may run again; half of them are `twisted`.

    Its tensors are in parts if `parts` asks for it and the draw has them.
    """
    rng = Random(seed)
    instance = (tiny_instance, twisted)[seed % 2](seed)
    instance = instance if parts else without_parts(instance)
    tasks = tuple(
        msgspec.structs.replace(
            task, recomputable=bool(task.outputs) and not task.updates and rng.random() < 0.7
        )
        for task in instance.tasks
    )
    return msgspec.structs.replace(instance, tasks=tasks)


def tiny_cluster(seed: int) -> Instance:
    """Return one layer's training on two GPUs, small enough for a search of all joint schedules.

    There are a forward task, the loss and a backward task. The input may have to leave in between, as the
    three tasks need different memory. There are one or two gradients, and a bus that may be slower than the
    links.
    """
    rng = Random(seed)

    def block(name: str, initially: Literal["absent", "device", "host"] = "absent") -> Block:
        units = rng.randint(1, 3)
        return Block(
            name=name,
            bytes=4 * units,
            offload_ns=units * rng.choice((1, 2, 3)),
            prefetch_ns=units * rng.choice((0, 1, 2, 2)),
            initially=initially,
        )

    def task(name: str, inputs: tuple[int, ...], outputs: tuple[int, ...]) -> Task:
        plain = Algorithm(name="plain", duration_ns=rng.randint(1, 6), workspace_bytes=0)
        fast = Algorithm(name="fast", duration_ns=plain.duration_ns // 2, workspace_bytes=4)
        algorithms = (plain, fast) if rng.random() < 0.5 else (plain,)
        return Task(name=name, inputs=inputs, outputs=outputs, algorithms=algorithms)

    blocks = [block("X", rng.choice(("device", "device", "host"))), block("Y"), block("dY")]
    tasks = [task("F", (0,), (1,)), task("loss", (1,), (2,)), task("B", (0, 2), ())]
    if rng.random() < 0.5:
        blocks.append(block("P"))
        tasks.insert(1, task("P", (), (3,)))
        tasks[-1] = task("B", (0, 2, 3), ())
    instance = Instance(
        name=f"tiny-cluster-{seed}",
        engines=rng.choice(("duplex", "duplex", "single")),
        budget_bytes=2**40,
        resident_bytes=rng.choice((0, 5)),
        alignment_bytes=4,
        blocks=tuple(blocks),
        tasks=tuple(tasks),
        cluster=_shared(rng, len(tasks)),
    )
    budget = least_budget(instance) + 4 * rng.randint(0, 2)
    return msgspec.structs.replace(instance, budget_bytes=budget)


def _shared(rng: Random, tasks: int) -> Cluster:
    gradients = []
    for i in range(rng.choice((1, 1, 2))):
        units = rng.randint(1, 3)
        gradients.append(
            Gradient(
                name=f"dW{i}",
                bytes=4 * units,
                offload_ns=units * rng.choice((0, 1, 1, 2)),
                prefetch_ns=units * rng.choice((1, 1, 2)),
                produced_by=tasks - 1 - i,
                used_by=tuple(sorted({0, rng.randrange(tasks)})),
            )
        )
    return Cluster(
        gpus=2,
        bus_bytes_per_second=rng.choice((2, 3, 4, 8)) * 10**9,
        cores=rng.choice((1, 2)),
        core_bytes_per_second=rng.choice((2, 4)) * 10**9,
        host_bytes_per_second=6 * 10**9,
        gradients=tuple(gradients),
    )


def without_parts(instance: Instance) -> Instance:
    """Return the instance with every part of a tensor as a block of its own."""
    blocks = tuple(msgspec.structs.replace(block, tensor=None, begin=None) for block in instance.blocks)
    return msgspec.structs.replace(instance, blocks=blocks)


def without_copies(instance: Instance) -> Instance:
    """Return the instance without parts and copies, with recomputable tasks.

    Every task that writes and updates nothing may run again.
    """
    blocks = tuple(
        msgspec.structs.replace(
            block,
            offload_ns=None,
            prefetch_ns=None,
            move_ns=None,
            tensor=None,
            begin=None,
            initially="device" if block.initially != "absent" else "absent",
        )
        for block in instance.blocks
    )
    tasks = tuple(
        msgspec.structs.replace(task, recomputable=bool(task.outputs) and not task.updates)
        for task in instance.tasks
    )
    return msgspec.structs.replace(instance, blocks=blocks, tasks=tasks)


def scaled(instance: Instance, *, time: int = 1, size: int = 1) -> Instance:
    """Return the instance with all times and all sizes, including the alignment, multiplied."""

    def longer(ns: int | None) -> int | None:
        return None if ns is None else ns * time

    return msgspec.structs.replace(
        instance,
        budget_bytes=instance.budget_bytes * size,
        resident_bytes=instance.resident_bytes * size,
        alignment_bytes=instance.alignment_bytes * size,
        blocks=tuple(
            msgspec.structs.replace(
                block,
                bytes=block.bytes * size,
                offload_ns=longer(block.offload_ns),
                prefetch_ns=longer(block.prefetch_ns),
                move_ns=longer(block.move_ns),
                begin=None if block.begin is None else block.begin * size,
            )
            for block in instance.blocks
        ),
        tasks=tuple(
            msgspec.structs.replace(
                task,
                algorithms=tuple(
                    msgspec.structs.replace(
                        a, duration_ns=a.duration_ns * time, workspace_bytes=a.workspace_bytes * size
                    )
                    for a in task.algorithms
                ),
            )
            for task in instance.tasks
        ),
    )
