"""Instances that nobody would draw by hand: every feature of the format, at every size, on a few tasks.

All draws come from one `random.Random`. Where hypothesis gives it (`st.randoms`), what is found shrinks: the
first of several choices is the plainest, and the least number the simplest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Literal

import msgspec

from pebbler.instances.figures import MILLION
from pebbler.instances.gpus.cluster import Cluster, Gradient
from pebbler.instances.instance import Algorithm, Block, Instance, Link, Slowdown, Task
from pebbler.instances.memory import footprint, least_budget
from pebbler.instances.units import LARGEST, PAGE_BYTES, ceil_to

Place = Literal["absent", "device", "host"]


@dataclass(frozen=True, slots=True)
class Shape:
    """What instances may have.

    Attributes
    ----------
    tasks, blocks
        The most of each.
    digits
        The most zeros of a size or a time: with 11, sizes reach a terabyte and times a quarter of an hour.
    parts, reruns, moves
        Whether tensors come in parts, tasks may run again, blocks move inside the device.
    pages
        Whether sizes are close to whole pages.
    """

    tasks: int = 6
    blocks: int = 6
    digits: int = 11
    parts: bool = True
    reruns: bool = False
    moves: bool = False
    pages: bool = False


def chance(rng: Random, percent: int) -> bool:
    """Whether something happens that happens so often; it shrinks to no."""
    return rng.randrange(100) >= 100 - percent


def adversarial(rng: Random, shape: Shape) -> Instance:
    """Return an instance of a shape whose every task fits the pool by itself."""
    return _Draw(rng, shape).instance()


def adversarial_cluster(rng: Random, *, searchable: bool) -> Instance:
    """Return an instance for several GPUs; for the exhaustive search, two of one node without NVLink."""
    alone = adversarial(rng, Shape(tasks=3 if searchable else 5, blocks=3, digits=2, parts=False))
    time = _Draw(rng, Shape()).number
    gradients = []
    for i in range(rng.randint(0, 1 if searchable else 3)):
        made = rng.randrange(len(alone.tasks))
        used = tuple(k for k in range(len(alone.tasks)) if chance(rng, 40))
        gradients.append(
            Gradient(
                name=f"g{i}",
                bytes=time(1),
                offload_ns=time(1, least=0),
                prefetch_ns=time(1, least=0),
                produced_by=made,
                used_by=used,
            )
        )
    nodes = 1 if searchable else rng.choice((1, 1, 2))
    ring = nodes == 1 and not searchable and chance(rng, 40)
    cluster = Cluster(
        gpus=2 if searchable else nodes * rng.randint(1, 4),
        nodes=nodes,
        bus_bytes_per_second=rng.choice((1, 2, 3, 10)) * 10**9,
        cores=rng.choice((1, 2)),
        core_bytes_per_second=rng.choice((1, 4)) * 10**9,
        host_bytes_per_second=6 * 10**9,
        network_bytes_per_second=rng.choice((1, 5)) * 10**9 if nodes > 1 else None,
        nvlink_bytes_per_second=rng.choice((1, 5)) * 10**9 if ring else None,
        gradients=tuple(gradients),
    )
    return msgspec.structs.replace(alone, cluster=cluster)


def with_host_budget(rng: Random, instance: Instance) -> Instance:
    """Return the instance with a budget of host memory: plenty, none at all, or what some copies need."""
    sizes = [block.bytes for block in instance.blocks] or [1]
    start = [b.bytes for b in instance.blocks if b.initially == "host"]
    end = [b.bytes for b in instance.blocks if b.finally_ == "host"]
    least = max(sum(start), sum(end))
    kind = rng.choice(("plenty", "none", "least", "least", "block", "block", "block", "less", "half", "half"))
    budget = {
        "plenty": sum(sizes) + rng.choice((0, 1, 10**12)),
        "none": 0,
        "least": least,
        "block": least + rng.choice(sizes),
        "less": max(least + rng.choice(sizes) - 1, 0),
        "half": sum(sizes) // 2,
    }[kind]
    return msgspec.structs.replace(instance, host_budget_bytes=budget)


def with_carried(rng: Random, instance: Instance) -> Instance:
    """Return the instance with most of its first blocks carried; if it has none, with one more that is."""
    blocks, tasks, more = list(instance.blocks), list(instance.tasks), 0
    first = [d for d, block in enumerate(blocks) if block.initially != "absent"]
    if not first:
        k, touch = rng.randrange(len(tasks)), rng.choice(("inputs", "updates"))
        touched = (*getattr(tasks[k], touch), len(blocks))
        tasks[k] = msgspec.structs.replace(tasks[k], **{touch: touched})
        more = rng.choice((1, 10, *(block.bytes for block in blocks)))
        first = [len(blocks)]
        blocks.append(Block(name="carried", bytes=more, offload_ns=1, prefetch_ns=rng.choice((1, 2, 0))))
    chosen = [d for d in first if chance(rng, 75)] or first[:1]
    for d in chosen:
        blocks[d] = msgspec.structs.replace(blocks[d], initially="carried", finally_="anywhere")
    budget = instance.budget_bytes + ceil_to(more, instance.alignment_bytes)
    return msgspec.structs.replace(instance, blocks=tuple(blocks), tasks=tuple(tasks), budget_bytes=budget)


def with_link(rng: Random, instance: Instance) -> Instance:
    """Return the instance with a link about as fast as a copy of it, which is often too slow for two."""
    rates = [b.bytes * 10**9 // t for b in instance.blocks for t in (b.offload_ns, b.prefetch_ns) if t]
    rate = rng.choice(rates or [10**9]) * rng.choice((2, 2, 3, 1, 4, 8)) // 2 + rng.choice((0, 0, 0, 1))
    least = 1 + max((b.bytes for b in instance.blocks), default=0) // 1000  # a copy takes minutes at most
    return msgspec.structs.replace(instance, link=Link(both_bytes_per_second=min(max(rate, least), LARGEST)))


def with_slowdown(rng: Random, instance: Instance) -> Instance:
    """Return the instance with tasks that copies slow down, some of them to a halt."""
    single = instance.engines == "single"
    tasks = []
    for k, task in enumerate(instance.tasks):
        first = rng.choice((500_000, 100_000, 333_333, 900_000, 1_000_000, 0))
        other = rng.choice((0, 500_000, 100_000, 333_333, 1_000_000))
        if not single:
            other = min(other, MILLION - first)
        lost = Slowdown(offload=first, prefetch=other)
        if chance(rng, 50):
            lost = Slowdown(offload=other, prefetch=first)
        is_slowed = k == 0 or chance(rng, 75)
        tasks.append(msgspec.structs.replace(task, slowdown_ppm=lost) if is_slowed else task)
    return msgspec.structs.replace(instance, tasks=tuple(tasks))


def with_copies(rng: Random, instance: Instance) -> Instance:
    """Return the instance with more copies that are made, and take about as long as runs."""
    times = (1, 3, *(a.duration_ns for task in instance.tasks for a in task.algorithms))
    blocks = list(instance.blocks)
    for d, block in enumerate(blocks):
        if chance(rng, 50):
            block = msgspec.structs.replace(
                block, offload_ns=rng.choice(times), prefetch_ns=rng.choice(times)
            )
        if block.initially != "carried" and chance(rng, 30):
            block = msgspec.structs.replace(block, finally_="host")
        blocks[d] = block
    return msgspec.structs.replace(instance, blocks=tuple(blocks))


def with_host_work(rng: Random, instance: Instance) -> Instance:
    """Return the instance with tasks that may run on the host, or cannot run anywhere else."""
    tasks = list(instance.tasks)
    chosen = [k for k in range(len(tasks)) if chance(rng, 50)] or [rng.randrange(len(tasks))]
    scratch = (0, 0, 0, 1, *(block.bytes for block in instance.blocks))
    for k in chosen:
        times = [algorithm.duration_ns for algorithm in tasks[k].algorithms]
        on_host = [
            Algorithm(
                name=f"h{a}",
                duration_ns=rng.choice((*times, 0, 1, 3, 2 * times[0])),
                workspace_bytes=rng.choice(scratch),
                on="host",
            )
            for a in range(rng.choice((1, 1, 2)))
        ]
        on_device = () if chance(rng, 30) else tasks[k].algorithms
        tasks[k] = msgspec.structs.replace(tasks[k], recomputable=False, algorithms=(*on_device, *on_host))
    return msgspec.structs.replace(instance, tasks=tuple(tasks))


def with_own_inputs(rng: Random, instance: Instance) -> Instance:
    """Return the instance with tasks whose algorithms read different blocks.

    They read what exists then: less than the task's inputs, or other blocks. Most take other times.
    """
    tasks, exists = list(instance.tasks), [block.initially != "absent" for block in instance.blocks]
    for k, task in enumerate(tasks):
        there = [d for d, has in enumerate(exists) if has and d not in task.updates]
        for d in task.outputs:
            exists[d] = True
        if not there or not chance(rng, 75):
            continue
        algorithms = list(task.algorithms)
        for _ in range(rng.choice((1, 1, 2))):
            read = tuple(d for d in there if chance(rng, 50))
            if {*read} == {*task.inputs}:
                read = tuple(d for d in there if d not in read)
            if {*read} == {*task.inputs}:
                continue
            like = rng.choice(task.algorithms)
            time = rng.choice((like.duration_ns, 0, 1, 2 * like.duration_ns, like.duration_ns // 2))
            algorithms.insert(
                rng.randrange(len(algorithms) + 1),
                msgspec.structs.replace(like, name=f"r{len(algorithms)}", duration_ns=time, inputs=read),
            )
        tasks[k] = msgspec.structs.replace(task, algorithms=tuple(algorithms))
    return msgspec.structs.replace(instance, tasks=tuple(tasks))


def with_own_outputs(rng: Random, instance: Instance) -> Instance:
    """Return the instance with tasks of which some algorithms leave out an output.

    It is a block that there was, or a new and mostly small one, as a mask. Later tasks read it with an
    algorithm of their own, or not at all; those that have read it with all of theirs get another one.
    """
    blocks, tasks = list(instance.blocks), list(instance.tasks)
    for k in range(len(tasks)):
        free = [
            d
            for d in tasks[k].outputs
            if instance.writers[d] == (k,) and blocks[d].finally_ == "anywhere" and blocks[d].tensor is None
        ]
        if not blocks or not chance(rng, 60):
            continue
        if free and chance(rng, 60):
            d = rng.choice(free)
        else:
            d, like = len(blocks), rng.choice(blocks)
            size = rng.choice((like.bytes, 1, max(like.bytes // 2, 1)))
            plain = {"initially": "absent", "finally_": "anywhere", "tensor": None, "begin": None}
            blocks.append(msgspec.structs.replace(like, name=f"m{k}", bytes=size, load_bytes=None, **plain))
            tasks[k] = msgspec.structs.replace(tasks[k], outputs=(*tasks[k].outputs, d))
        shorter = tuple(o for o in tasks[k].outputs if o != d and (o not in free or chance(rng, 60)))
        leaves_out = {*tasks[k].outputs} - {*shorter}
        tasks[k] = _with_like(rng, tasks[k], outputs=shorter)
        for i in range(k + 1, len(tasks)):
            task = tasks[i]
            if leaves_out & {*task.must_read}:
                read = tuple(x for x in task.inputs if x not in leaves_out)
                tasks[i] = task = _with_like(rng, task, inputs=read)
            if d not in task.may_read and chance(rng, 60):
                others = tuple(x for x in task.inputs if chance(rng, 40) and x not in leaves_out)
                tasks[i] = _with_like(rng, task, inputs=(*others, d))
    made = msgspec.structs.replace(instance, blocks=tuple(blocks), tasks=tuple(tasks))
    if instance.budget_bytes < least_budget(instance):
        return made
    return msgspec.structs.replace(made, budget_bytes=max(least_budget(made), instance.budget_bytes))


def _with_like(rng: Random, task: Task, **own: tuple[int, ...]) -> Task:
    """Return the task with a further algorithm, which has some blocks of its own, and mostly another time."""
    like = rng.choice([one for one in task.algorithms if one.inputs is one.outputs is msgspec.UNSET])
    time = rng.choice((like.duration_ns, 0, 1, 2 * like.duration_ns, like.duration_ns // 2))
    name = f"o{len(task.algorithms)}"
    new = msgspec.structs.replace(like, name=name, duration_ns=time, takes_over=(), **own)
    at = rng.randrange(len(task.algorithms) + 1)
    return msgspec.structs.replace(task, algorithms=(*task.algorithms[:at], new, *task.algorithms[at:]))


def with_takeovers(rng: Random, instance: Instance) -> Instance:
    """Return the instance with outputs as large as an input, whose place they may take over."""
    blocks, tasks = list(instance.blocks), list(instance.tasks)
    for k, task in enumerate(tasks):
        algorithms = list(task.algorithms)
        for a in range(len(algorithms)):
            read = [x for x in task.reads(a) if blocks[x].tensor is None]
            written = [d for d in task.makes(a) if blocks[d].tensor is None]
            if not read or not written or not chance(rng, 75):
                continue
            x, d = rng.choice(read), rng.choice(written)
            if any(d in [one for one, _ in other.takes_over] for t in tasks for other in t.algorithms):
                continue
            blocks[d] = msgspec.structs.replace(blocks[d], bytes=blocks[x].bytes)
            if chance(rng, 75):  # most are copied in the same time, too
                times = {key: getattr(blocks[x], key) for key in ("offload_ns", "prefetch_ns", "move_ns")}
                blocks[d] = msgspec.structs.replace(blocks[d], **times)
            algorithms[a] = msgspec.structs.replace(algorithms[a], takes_over=((d, x),))
            tasks[k] = msgspec.structs.replace(task, algorithms=tuple(algorithms))
            task = tasks[k]
    for k, task in enumerate(tasks):  # where a later change of sizes has spoilt a pair, it is left out
        tasks[k] = msgspec.structs.replace(
            task,
            algorithms=tuple(
                msgspec.structs.replace(
                    one,
                    takes_over=tuple(p for p in one.takes_over if blocks[p[0]].bytes == blocks[p[1]].bytes),
                )
                for one in task.algorithms
            ),
        )
    made = msgspec.structs.replace(instance, blocks=tuple(blocks), tasks=tuple(tasks), budget_bytes=2**53)
    least = least_budget(made)
    return msgspec.structs.replace(made, budget_bytes=rng.choice((least, max(least, instance.budget_bytes))))


KEYS: dict[str, Callable[[Random, Instance], Instance]] = {
    "carried": with_carried,
    "host_work": with_host_work,
    "link": lambda rng, instance: with_link(rng, with_copies(rng, instance)),
    "slowdown": lambda rng, instance: with_slowdown(rng, with_copies(rng, instance)),
    "host_budget": with_host_budget,
    "own_inputs": with_own_inputs,
    "own_outputs": with_own_outputs,
    "takes_over": with_takeovers,
}
"""How an instance gets what it may have beyond its shape, in the order in which it does."""


def features(instance: Instance) -> set[str]:
    """What an instance has, in words."""
    blocks, tasks = instance.blocks, instance.tasks
    times = [t for b in blocks for t in (b.offload_ns, b.prefetch_ns)]
    runs = [a.duration_ns for task in tasks for a in task.algorithms]
    found = {
        "one copy engine": instance.engines == "single",
        "updates in place": any(task.updates for task in tasks),
        "a block on the host only": any(b.initially == "host" for b in blocks),
        "a block on the device at first": any(b.initially == "device" for b in blocks),
        "must end on the host": any(b.finally_ == "host" for b in blocks),
        "must end on the device": any(b.finally_ == "device" for b in blocks),
        "must end on the device, without uses": any(
            b.finally_ == "device" and not uses for b, uses in zip(blocks, instance.uses, strict=True)
        ),
        "a copy that is impossible": None in times,
        "a copy without time": 0 in times,
        "a block without uses": not all(instance.uses),
        "a block of one byte": any(b.bytes == 1 for b in blocks),
        "a block of a terabyte's order": any(b.bytes >= 10**11 for b in blocks),
        "runs without time": 0 in runs,
        "no run takes time": not any(runs),
        "a time of minutes": any((t or 0) >= 10**11 for t in (*times, *runs)),
        "a workspace": any(a.workspace_bytes for task in tasks for a in task.algorithms),
        "several algorithms": any(len(task.algorithms) > 1 for task in tasks),
        "an algorithm that does not fit": any(
            footprint(instance, k) + a.workspace_bytes > instance.pool_bytes
            for k, task in enumerate(tasks)
            for a in task.algorithms
        ),
        "tensors in parts": any(b.tensor is not None for b in blocks),
        "algorithms that read different blocks": instance.reads_vary,
        "a block that only some algorithms read": any(
            d not in task.must_read for task in tasks for d in task.may_read
        ),
        "an output that some algorithms leave out": bool(instance.optional),
        "an algorithm that reads such an output": any(
            not instance.optional.isdisjoint(task.may_read) for task in tasks
        ),
        "an output that may take over a place": any(a.takes_over for task in tasks for a in task.algorithms),
        "a task that may run again": any(task.recomputable for task in tasks),
        "moves": any(b.move_ns is not None for b in blocks),
        "alignment": instance.alignment_bytes > 1,
        "resident bytes": instance.resident_bytes > 0,
        "no byte to spare": instance.pool_bytes
        == max(
            footprint(instance, k) + min(a.workspace_bytes for a in task.algorithms)
            for k, task in enumerate(tasks)
        ),
        "one task": len(tasks) == 1,
        "a carried block": bool(instance.carried),
        "a carried block that is updated": any(instance.writers[d] for d in instance.carried),
        "a carried block that is read only": any(
            instance.uses[d] and not instance.writers[d] for d in instance.carried
        ),
        "a carried block that cannot be copied": any(
            None in (blocks[d].offload_ns, blocks[d].prefetch_ns) for d in instance.carried
        ),
        "several carried blocks": len(instance.carried) > 1,
        "a link for both directions": instance.link is not msgspec.UNSET,
        "a task that copies slow down": any(task.slowdown_ppm is not msgspec.UNSET for task in tasks),
        "a task that copies stop": any(
            task.slowdown_ppm is not msgspec.UNSET
            and MILLION in (task.slowdown_ppm.offload, task.slowdown_ppm.prefetch)
            for task in tasks
        ),
        "a task on either side": any(task.may_run_on_host and task.device_algorithms for task in tasks),
        "a task for the host alone": not all(task.device_algorithms for task in tasks),
        "a workspace on the host": any(
            a.on == "host" and a.workspace_bytes for task in tasks for a in task.algorithms
        ),
        "host memory ends": instance.has_host_budget,
        "no host memory": instance.host_budget_bytes == 0,
        "host memory for some copies": instance.has_host_budget
        and 0 < instance.host_budget_bytes < sum(b.bytes for b in blocks),
    }
    return {name for name, has in found.items() if has}


@dataclass(slots=True)
class _Draw:
    """One draw: sizes, times of runs and times of copies have a largest power of ten each."""

    rng: Random
    shape: Shape

    def number(self, digits: int, least: int = 1) -> int:
        """A number of at most so many zeros, often a small one, sometimes just past a round one."""
        rng = self.rng
        return rng.randint(least, 9) * 10 ** rng.randint(0, digits) + rng.choice((0, 0, 0, 1))

    def instance(self) -> Instance:
        rng, shape = self.rng, self.shape
        scales = (0, 0, 0, 1, shape.digits)
        size, run, copy = (rng.choice(scales) for _ in range(3))
        idle = chance(rng, 8)  # no run takes time
        alignment = rng.choice((1, 1, 1, 4, 512))
        again = shape.reruns and chance(rng, 90)
        unit = PAGE_BYTES if shape.pages else 1

        def bytes_() -> int:
            amount = self.number(min(size, 2) if shape.pages else size) * unit
            return max(amount + (rng.choice((0, 0, 0, 1, -1)) if shape.pages else 0), 1)

        def copied() -> int | None:
            kind = rng.choice(("some", "some", "some", "some", "some", "zero", "null"))
            return {"some": self.number(copy, least=0), "zero": 0, "null": None}[kind]

        blocks: list[Block] = []

        def block(place: Place) -> int:
            blocks.append(
                Block(
                    name=f"b{len(blocks)}",
                    bytes=bytes_(),
                    offload_ns=copied(),
                    prefetch_ns=copied(),
                    move_ns=self.number(0, least=0) if shape.moves and chance(rng, 30) else None,
                    initially=place,
                    finally_=rng.choice(("anywhere", "anywhere", "anywhere", "host", "device")),
                )
            )
            return len(blocks) - 1

        for _ in range(rng.randint(0, min(3, shape.blocks))):
            block(rng.choice(("device", "host")))
        tasks: list[Task] = []
        for k in range(rng.randint(1, shape.tasks)):
            inputs, updates = [], []
            for d in range(len(blocks)):
                touch = rng.choice(("no", "no", "no", "read", "read", "update"))
                (inputs if touch == "read" else updates if touch == "update" else []).append(d)
            room = shape.blocks - len(blocks)
            outputs = [block("absent") for _ in range(min(rng.choice((0, 1, 1, 1, 2)), room))]
            if shape.parts and len(outputs) == 2 and chance(rng, 70):
                first, second = outputs
                begin = ceil_to(blocks[first].bytes, PAGE_BYTES if shape.pages else alignment)
                for d, where in ((first, 0), (second, begin)):
                    blocks[d] = msgspec.structs.replace(blocks[d], tensor=f"t{k}", begin=where)
            algorithms = []
            for a in range(rng.choice((1, 1, 2, 3))):
                scratch = bytes_() if (a and chance(rng, 80)) or chance(rng, 15) else 0
                time = 0 if idle else self.number(run, least=0)
                algorithms.append(Algorithm(name=f"a{a}", duration_ns=time, workspace_bytes=scratch))
            tasks.append(
                Task(
                    name=f"k{k}",
                    inputs=tuple(inputs),
                    outputs=tuple(outputs),
                    updates=tuple(updates),
                    algorithms=tuple(algorithms),
                    recomputable=again and chance(rng, 60),
                )
            )
        found = Instance(
            name="adversarial",
            engines=rng.choice(("duplex", "single")),
            budget_bytes=0,
            resident_bytes=rng.choice((0, 0, 1, 10 ** rng.randint(0, shape.digits))),
            alignment_bytes=PAGE_BYTES if shape.pages and any(b.tensor for b in blocks) else alignment,
            blocks=tuple(blocks),
            tasks=tuple(tasks),
        )
        return msgspec.structs.replace(found, budget_bytes=self.budget(found, unit))

    def budget(self, instance: Instance, unit: int) -> int:
        """From what one task needs, in bytes or in aligned ones, up to what some blocks more need."""
        rng = self.rng
        need = max(
            footprint(instance, k) + min(a.workspace_bytes for a in task.algorithms)
            for k, task in enumerate(instance.tasks)
        )
        if unit > 1:
            need = max(
                sum(ceil_to(instance.blocks[d].bytes, unit) for d in task.blocks)
                + min(ceil_to(a.workspace_bytes, unit) for a in task.algorithms)
                for task in instance.tasks
            )
        sizes = [b.bytes for b in instance.blocks] or [1]
        least = rng.choice((need + instance.resident_bytes, least_budget(instance)))
        least = max(least, need + instance.resident_bytes)
        kind = rng.choice(("least", "unit", "block", "block", "less", "more"))
        more = {
            "least": 0,
            "unit": unit,
            "block": rng.choice(sizes),
            "less": max(rng.choice(sizes) - 1, 0),
            "more": sum(sizes) // 2,
        }[kind]
        return max(least + more, 1)
