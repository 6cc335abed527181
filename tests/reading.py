"""A tiny instance in which a task reads either of two blocks, for which all can be worked out by hand."""

from __future__ import annotations

import msgspec

from pebbler.instances.instance import Algorithm, Block, Instance, Task


def algorithm(name: str = "a", time: int = 1, **keys: object) -> Algorithm:
    return Algorithm(**{"name": name, "duration_ns": time, "workspace_bytes": 0, **keys})


def block(name: str, size: int = 1, **keys: object) -> Block:
    return Block(**{"name": name, "bytes": size, "offload_ns": 10, "prefetch_ns": 10, **keys})


def either(**keys: object) -> Instance:
    """The last task reads y, which is made of x, or x itself; z has the whole pool in between.

    The best is to copy x out as soon as it is there, from 1 to 11 ns, and back after z, from 12 to 22 ns. The
    last task, which reads x then, ends at 23 ns.
    """
    tasks = (
        Task(name="make x", inputs=(), outputs=(0,), algorithms=(algorithm(),)),
        Task(name="make y", inputs=(0,), outputs=(1,), algorithms=(algorithm(),)),
        Task(name="fill", inputs=(), outputs=(2,), algorithms=(algorithm(),)),
        Task(
            name="either",
            inputs=(1,),
            outputs=(),
            algorithms=(algorithm("from y"), algorithm("from x", inputs=(0,))),
        ),
    )
    made = Instance(
        name="either",
        engines="duplex",
        budget_bytes=2,
        resident_bytes=0,
        alignment_bytes=1,
        blocks=(block("x"), block("y"), block("z", 2)),
        tasks=tasks,
    )
    return msgspec.structs.replace(made, **keys)


def with_last(instance: Instance, *algorithms: Algorithm, **keys: object) -> Instance:
    """Return the instance whose last task has other algorithms."""
    last = msgspec.structs.replace(instance.tasks[-1], algorithms=algorithms, **keys)
    return msgspec.structs.replace(instance, tasks=(*instance.tasks[:-1], last))


def in_place(**keys: object) -> Instance:
    """y may take over the place of x, and the pool has room for one of them: 3 ns, and none otherwise."""
    tasks = (
        Task(name="make x", inputs=(), outputs=(0,), algorithms=(algorithm(),)),
        Task(
            name="make y",
            inputs=(0,),
            outputs=(1,),
            algorithms=(algorithm("beside"), algorithm("in place", takes_over=((1, 0),))),
        ),
        Task(name="read y", inputs=(1,), outputs=(), algorithms=(algorithm(),)),
    )
    made = Instance(
        name="in place",
        engines="duplex",
        budget_bytes=2,
        resident_bytes=0,
        alignment_bytes=1,
        blocks=(block("x", 2), block("y", 2)),
        tasks=tasks,
    )
    return msgspec.structs.replace(made, **keys)


def in_place_again() -> Instance:
    """As `in_place`, but z needs the whole pool in between, and nothing is copied: x and y are made twice.

    To make x takes 10 ns, and the other runs one each: 24 ns.
    """
    first, second, last = in_place().tasks
    tasks = (
        msgspec.structs.replace(first, recomputable=True, algorithms=(algorithm(time=10),)),
        msgspec.structs.replace(second, recomputable=True),
        msgspec.structs.replace(last, name="fill", inputs=(), outputs=(2,)),
        last,
    )
    blocks = (*in_place().blocks, block("z", 2))
    stay = tuple(msgspec.structs.replace(one, offload_ns=None, prefetch_ns=None) for one in blocks)
    return in_place(tasks=tasks, blocks=stay)


def overwriting(instance: Instance) -> Instance:
    """All blocks are alike, and outputs of a task may take over the places of its inputs, each of one."""
    blocks = tuple(
        msgspec.structs.replace(
            one,
            bytes=512,
            offload_ns=None if one.offload_ns is None else 100,
            prefetch_ns=None if one.prefetch_ns is None else 100,
        )
        for one in instance.blocks
    )
    tasks = tuple(
        msgspec.structs.replace(
            task,
            algorithms=tuple(
                msgspec.structs.replace(one, takes_over=tuple(zip(task.outputs, task.inputs, strict=False)))
                for one in task.algorithms
            ),
        )
        if task.inputs and task.outputs
        else task
        for task in instance.tasks
    )
    return msgspec.structs.replace(instance, blocks=blocks, tasks=tasks)


def masked(**keys: object) -> Instance:
    """The backward task of a ReLU reads x or a mask that the ReLU may make; z has no place beside x.

    With the mask, that is 5 ns. Without it, x goes out from 1 to 11 ns and comes back from 12 to 22 ns: 23.
    Where the pool has room for all, x stays, and the ReLU makes no mask: 4 ns.
    """
    tasks = (
        Task(name="make x", inputs=(), outputs=(0,), algorithms=(algorithm(),)),
        Task(
            name="relu",
            inputs=(0,),
            outputs=(1, 2),
            algorithms=(algorithm("with mask", 2), algorithm("without", 1, outputs=(1,))),
        ),
        Task(name="fill", inputs=(), outputs=(3,), algorithms=(algorithm(),)),
        Task(
            name="back",
            inputs=(0,),
            outputs=(),
            algorithms=(algorithm("from x"), algorithm("from the mask", inputs=(2,))),
        ),
    )
    made = Instance(
        name="masked",
        engines="duplex",
        budget_bytes=9,
        resident_bytes=0,
        alignment_bytes=1,
        blocks=(block("x", 4), block("y", 4), block("mask", 1), block("z", 8)),
        tasks=tasks,
    )
    return msgspec.structs.replace(made, **keys)


def with_relu(instance: Instance, *algorithms: Algorithm, **keys: object) -> Instance:
    """Return the instance whose second task has other algorithms."""
    relu = msgspec.structs.replace(instance.tasks[1], algorithms=algorithms, **keys)
    return msgspec.structs.replace(instance, tasks=(instance.tasks[0], relu, *instance.tasks[2:]))
