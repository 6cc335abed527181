"""Tiny instances drawn to break proofs: every rule of the format that a bound could get wrong, in few tasks.

A generator takes a `Random`, so that a seed names an instance, and hypothesis can shrink one.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from random import Random

import msgspec

from pebbler.instances.gpus.cluster import SECOND, Cluster, Gradient
from pebbler.instances.instance import Algorithm, Block, Instance, Task
from pebbler.validate.bounds.reads import with_least_reads
from pebbler.validate.bounds.survival import SurvivalKey, require_survival


def hostile_instance(
    rng: Random, *, recomputable: bool = False, unit: int = 1, most_tasks: int = 5, host: bool = False
) -> Instance:
    """Return an instance of a few tasks and blocks, in sizes of a few units, under a tight budget.

    Blocks begin and end anywhere, also without any use; copies are impossible, free or slow, each way by
    itself; tasks read, write and update in any order, take no time, or have several algorithms. One
    budget in twelve is under what a task needs. With `host`, host memory ends, too, often after few copies.
    """
    count = rng.randint(1, most_tasks)
    blocks = [_block(rng, d, unit) for d in range(rng.randint(1, 5))]
    exists = [block.initially != "absent" for block in blocks]
    tasks = [_task(rng, k, blocks, exists, unit, recomputable=recomputable) for k in range(count)]
    blocks = [
        block if exists[d] else msgspec.structs.replace(block, finally_="anywhere")
        for d, block in enumerate(blocks)
    ]
    needs = [
        sum(blocks[d].bytes for d in task.blocks) + min(a.workspace_bytes for a in task.algorithms)
        for task in tasks
    ]
    slack = rng.choice((0, 0, 0, 1, 2, 3, 5, 8, 13, 99, -1))
    resident = rng.choice((0, 0, 7 * unit))
    instance = Instance(
        name=f"hostile-{rng.randrange(10**9)}",
        engines=rng.choice(("duplex", "duplex", "single")),
        budget_bytes=resident + max(max(needs) + slack * unit, 0),
        resident_bytes=resident,
        alignment_bytes=1,
        blocks=tuple(blocks),
        tasks=tuple(tasks),
    )
    return _with_host_memory(rng, instance) if host else instance


def _with_host_memory(rng: Random, instance: Instance) -> Instance:
    """Give host memory an end: at nothing, or around where so many copies end, with addresses or without."""
    sizes = rng.sample([block.bytes for block in instance.blocks], len(instance.blocks))
    some = sizes[: rng.randint(0, len(sizes))]
    placed = sum(-(-size // 512) * 512 for size in some[:-1]) + sum(some[-1:])
    budget = max(rng.choice((placed, placed, sum(some))) + rng.choice((0, 0, 1, -1)), 0)
    return msgspec.structs.replace(instance, host_budget_bytes=budget)


def _block(rng: Random, d: int, unit: int) -> Block:
    times = (None, 0, 1, 1, 2, 3, 5, 8, 20)
    return Block(
        name=f"b{d}",
        bytes=rng.choice((1, 1, 2, 3, 4, 6, 9)) * unit + rng.choice((0, 0, 1)) * (unit > 1),
        offload_ns=rng.choice(times),
        prefetch_ns=rng.choice(times),
        move_ns=rng.choice((None, 0, 1)),
        initially=rng.choice(("absent", "absent", "device", "host")),
        finally_=rng.choice(("anywhere", "anywhere", "device", "host")),
    )


def _task(
    rng: Random, k: int, blocks: list[Block], exists: list[bool], unit: int, *, recomputable: bool
) -> Task:
    kinds: dict[str, list[int]] = {"inputs": [], "outputs": [], "updates": []}
    for d in range(len(blocks)):
        if rng.random() < 0.45:
            kind = rng.choice(("inputs", "inputs", "updates")) if exists[d] else "outputs"
            kinds[kind].append(d)
    for d in kinds["outputs"]:
        exists[d] = True
    algorithms = tuple(
        Algorithm(
            name=f"a{i}",
            duration_ns=rng.choice((0, 1, 2, 3, 5, 9)),
            workspace_bytes=rng.choice((0, 0, 1, 2, 4)) * unit,
        )
        for i in range(rng.choice((1, 1, 2)))
    )
    sets = {kind: tuple(touched) for kind, touched in kinds.items()}
    again = recomputable and rng.random() < 0.6
    return Task(name=f"t{k}", algorithms=algorithms, recomputable=again, **sets)


def hostile_cluster(rng: Random, *, gpus: int | None = None) -> Instance:
    """Return a hostile instance of one to three tasks on two to four GPUs, or on so many.

    They share a bus that may be slower than their links, and add up gradients on the host of one or two
    nodes, or over NVLink. Gradients take no time on a link, or much; some are for nobody. In most
    draws, all links have one pace, so that the bus is what is slow.
    """
    instance = hostile_instance(rng, most_tasks=3)
    pace = rng.choice((None, 1, 2, 3))
    if pace is not None:
        blocks = tuple(
            msgspec.structs.replace(
                block,
                offload_ns=block.offload_ns and -(-block.bytes // pace),
                prefetch_ns=block.prefetch_ns and -(-block.bytes // pace),
            )
            for block in instance.blocks
        )
        instance = msgspec.structs.replace(instance, blocks=blocks)
    tasks = range(len(instance.tasks))
    gradients = tuple(
        Gradient(
            name=f"g{i}",
            bytes=rng.choice((1, 2, 5, 12, 34)),
            offload_ns=rng.choice((0, 1, 2, 3, 8)),
            prefetch_ns=rng.choice((0, 1, 2, 3, 8)),
            produced_by=rng.choice((0, rng.choice(tasks))),
            used_by=tuple(sorted({rng.choice(tasks) for _ in range(rng.choice((0, 0, 1, 2)))})),
        )
        for i in range(rng.choice((0, 1, 1, 2, 2, 3)))
    )
    if pace is not None:
        gradients = tuple(
            msgspec.structs.replace(
                gradient,
                offload_ns=gradient.offload_ns and -(-gradient.bytes // pace),
                prefetch_ns=gradient.prefetch_ns and -(-gradient.bytes // pace),
            )
            for gradient in gradients
        )
    how = rng.choice(("host", "host", "nodes", "nvlink", "nvlink"))
    many = rng.choice((2, 2, 3, 4)) if gpus is None else gpus
    many += many % 2 if how == "nodes" else 0
    cluster = Cluster(
        gpus=many,
        nodes=2 if how == "nodes" else 1,
        bus_bytes_per_second=rng.choice((1, 1, 2, 3, 5, 40)) * SECOND,
        cores=rng.choice((1, 2)),
        core_bytes_per_second=rng.choice((1, 4, 50)) * SECOND,
        host_bytes_per_second=rng.choice((6, 50)) * SECOND,
        network_bytes_per_second=rng.choice((1, 5)) * SECOND if how == "nodes" else None,
        nvlink_bytes_per_second=rng.choice((1, 2, 5)) * SECOND if how == "nvlink" else None,
        gradients=gradients,
    )
    return msgspec.structs.replace(instance, cluster=cluster)


def hugely(instance: Instance, rng: Random, *, most: int = 10**12) -> Instance:
    """Return the instance with times and sizes up to 10^12 or so, few of which share a divisor."""
    time, size = (rng.choice((1, 7, 10**5, 10**9 + 7, most // 20)) for _ in range(2))

    def long(ns: int | None) -> int | None:
        return ns and ns * time + rng.choice((0, 0, 1, rng.randrange(time)))

    def large(count: int) -> int:
        return count * size and count * size + rng.choice((0, 0, rng.randrange(size)))

    blocks = tuple(
        msgspec.structs.replace(
            b, bytes=large(b.bytes), offload_ns=long(b.offload_ns), prefetch_ns=long(b.prefetch_ns)
        )
        for b in instance.blocks
    )
    tasks = []
    for task in instance.tasks:
        algorithms = tuple(
            msgspec.structs.replace(
                a, duration_ns=long(a.duration_ns) or 0, workspace_bytes=large(a.workspace_bytes)
            )
            for a in task.algorithms
        )
        tasks.append(msgspec.structs.replace(task, algorithms=algorithms))
    return msgspec.structs.replace(
        instance,
        blocks=blocks,
        tasks=tuple(tasks),
        budget_bytes=instance.resident_bytes + instance.pool_bytes * size + rng.randint(0, 5 * size),
    )


def drawn_survival(
    instance: Instance, checkpoints: Sequence[int], rng: Random, percent: int, top: int
) -> dict[SurvivalKey, int]:
    """Prices of survival up to `top`, for so many percent of what has to survive."""
    found: dict[SurvivalKey, int] = {}
    least, read = with_least_reads(instance), [task.must_read for task in instance.tasks]
    for d, writers in enumerate(least.writers):
        for x in (d, *read[writers[0]]) if writers else ():
            for t in range(2 * len(checkpoints)):
                if rng.randrange(100) >= 100 - percent:
                    price = {(t, d, x): rng.randint(1, top)}
                    with suppress(ValueError):
                        require_survival(read, least, checkpoints, price)
                        found |= price
    return found
