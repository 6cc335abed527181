"""Transforms: pure functions that return another instance of the same iteration.

Every transform adds itself to the instance's ``transforms``. If several are applied, parts come last, because
the mask needs whole tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from .applied import Transform, TransformKind
from .arguments import quoted, require_fixed_reads, require_instance, require_kind, require_one_of
from .devices.device import whole_ns
from .errors import PebblerError
from .figures import is_positive
from .instance import Block, Instance, Link, Task
from .memory import require_parts_at_pages
from .origin import VALUE_BYTES
from .units import PAGE_BYTES, ceil_to, parse_rate, parse_size

LINKS: dict[str, float] = {"pcie3": 12.8e9, "pcie4": 25.6e9, "pcie5": 51.2e9, "nvlink": 150e9}
"""Bandwidths of links by name, in bytes per second and direction.

PCIe 3.0 x16: the share of 16e9 that DMA reaches (vDNN, MICRO 2016, section II-C). PCIe 4.0 and 5.0: the same
share of 32e9 and 64e9, which is an assumption. NVLink: "at least 150 GB/s" (Layrub, TACO 2018, section
5.3.2).
"""

_LINKS_TOLD = (
    f"write {', '.join(LINKS)} or the bytes of a second as 25GB, and the two directions as 25GB,20GB"
)


def with_engines(instance: Instance, engines: Literal["duplex", "single"]) -> Instance:
    """Return the instance with a copy stream for each direction, or with one for both."""
    require_instance(instance)
    require_one_of("engines", engines, ("duplex", "single"))
    return _changed(instance, Transform(kind="engines", value=engines), engines=engines)


def with_inputs_on_clock(instance: Instance) -> Instance:
    """Return the instance with the data that starts on the device on the host instead.

    Raises
    ------
    PebblerError
        When such a block cannot be prefetched.
    """
    require_instance(instance)
    blocks = []
    for block in instance.blocks:
        if block.initially == "device":
            if block.prefetch_ns is None:
                raise PebblerError(f"{instance.name}: '{block.name}' cannot be prefetched; it has to stay")
            block = msgspec.structs.replace(block, initially="host")
        blocks.append(block)
    return _changed(instance, Transform(kind="inputs-on-clock"), blocks=tuple(blocks))


def with_link(instance: Instance, link: str) -> Instance:
    """Return the instance with copies to and from the host over another link.

    The time of a copy is its bytes divided by the link's bandwidth. Impossible copies remain impossible.

    Parameters
    ----------
    instance
        Any instance.
    link
        As `parse_link` reads it.

    Raises
    ------
    PebblerError
        When it is no link.
    """
    require_instance(instance)
    require_kind("link", link, str, _LINKS_TOLD)
    to_host, to_device = parse_link(link)
    blocks = tuple(
        msgspec.structs.replace(
            block,
            offload_ns=None if block.offload_ns is None else whole_ns(block.bytes / to_host),
            prefetch_ns=None if block.prefetch_ns is None else whole_ns(block.bytes / to_device),
        )
        for block in instance.blocks
    )
    return _changed(instance, Transform(kind="link", value=link), blocks=blocks)


def with_shared_link(instance: Instance, both: int | str) -> Instance:
    """Return the instance with a link that copies in both directions share.

    Parameters
    ----------
    instance
        Any instance of one GPU.
    both
        What they get together: bytes a second, or a text such as ``30GB/s``.

    Raises
    ------
    PebblerError
        When it is no bandwidth, or when several GPUs share a bus already.
    """
    require_instance(instance)
    return msgspec.structs.replace(instance, link=Link(both_bytes_per_second=parse_shared_link(both)))


def parse_shared_link(both: int | str) -> int:
    """Read what copies in both directions get together, in bytes a second.

    Raises
    ------
    PebblerError
        When it is no bandwidth.
    """
    if type(both) is str:
        return parse_rate(both.removesuffix("/s"))
    if not is_positive(both):
        raise PebblerError(
            f"link_both is {quoted(both)}; give whole bytes a second, or a text such as '30GB/s'"
        )
    return int(both)


def parse_link(text: str) -> tuple[float, float]:
    """Read a link: the bytes of a second to the host, and those to the device.

    It is a name of `LINKS`, or the bytes of a second as ``25GB`` or ``25GB/s``; or two of these with a comma
    between them, to the host and to the device.

    Raises
    ------
    PebblerError
        When the link is neither.
    """
    rates = [_rate(part.strip(), text) for part in text.split(",")]
    if len(rates) > 2:
        raise PebblerError(f"'{text}' is not a link; {_LINKS_TOLD}")
    return rates[0], rates[-1]


def _rate(part: str, link: str) -> float:
    """Bytes a second of a direction of a link."""
    if (known := LINKS.get(part.lower())) is not None:
        return known
    try:
        rate = parse_size(part.removesuffix("/s"), letters=False)
    except PebblerError:
        raise PebblerError(f"'{link}' is not a link; {_LINKS_TOLD}") from None
    if not rate:
        raise PebblerError("a link of 0 bytes a second copies nothing; give a bandwidth above 0")
    return rate


def with_recomputation(instance: Instance) -> Instance:
    """Return the instance with forward tasks that may run again.

    These are the tasks of the forward pass according to the layers, or all tasks if there are no layers.
    Tasks that update a block in place are excluded, because a second run would need the overwritten data.
    """
    require_instance(instance)
    forward = set(range(len(instance.tasks)))
    if instance.layers is not msgspec.UNSET:
        forward = {k for layer in instance.layers for k in layer.forward}
    tasks = tuple(
        msgspec.structs.replace(task, recomputable=True) if k in forward and not task.updates else task
        for k, task in enumerate(instance.tasks)
    )
    return _changed(instance, Transform(kind="recompute"), name=f"{instance.name}-recompute", tasks=tasks)


def with_mask(instance: Instance) -> Instance:
    """Return the instance with Layrub's memory-efficient ReLU (TACO 2018, section 4.2).

    The backward task of a ReLU needs only the signs of Y. The task that writes Y also writes the signs to a
    block of a quarter of the size (one byte for each number), and the backward task reads this block.
    Durations do not change: the paper finds "almost no additional time".

    Raises
    ------
    PebblerError
        When no ReLU has a task of its own, or when blocks are parts already.
    """
    _require_whole(instance)
    relus = [layer for layer in instance.named_layers if layer.kind == "relu"]
    if not relus:
        raise PebblerError(f"{instance.name}: no ReLU has a task of its own; take the executable graph")
    blocks, tasks = list(instance.blocks), list(instance.tasks)
    for layer in relus:
        if len(layer.backward) != 1 or len(tasks[layer.backward[0]].inputs) != 1:
            raise PebblerError(
                f"{instance.name}: layer '{layer.name}' is no ReLU with a task that reads one Y"
            )
        (k,) = layer.backward
        (feature,) = tasks[k].inputs
        writer = instance.writers[feature][0]
        require_fixed_reads(instance, "the mask", [k, writer])
        mask = len(blocks)
        blocks.append(_mask(instance, instance.blocks[feature], f"M({layer.name.removeprefix('relu ')})"))
        tasks[k] = msgspec.structs.replace(tasks[k], inputs=(mask,))
        tasks[writer] = msgspec.structs.replace(tasks[writer], outputs=(*tasks[writer].outputs, mask))
    name = f"{instance.name}-mask"
    return _changed(instance, Transform(kind="mask"), name=name, blocks=tuple(blocks), tasks=tuple(tasks))


def with_algorithms(instance: Instance, transform: Transform, tasks: tuple[Task, ...]) -> Instance:
    """Return the instance with other algorithms for its tasks, and note the transform."""
    return _changed(instance, transform, tasks=tasks)


def in_pages(instance: Instance, page_bytes: int = PAGE_BYTES) -> Instance:
    """Return the instance with sizes in whole pages, as in paged memory, and with unchanged times of copies.

    Sizes of blocks and of workspaces on the device are rounded up to pages, and the pool is rounded down.
    Host memory has exact bytes: workspaces there remain, its budget grows by as many bytes as all blocks do,
    and a link that both directions share passes no more than before. A bound on this instance is a bound on
    the paged schedules of the original.

    Raises
    ------
    PebblerError
        When a part of a tensor begins inside a page.
    """
    require_parts_at_pages(instance, page_bytes)
    blocks = tuple(
        msgspec.structs.replace(
            block,
            bytes=ceil_to(block.bytes, page_bytes),
            load_bytes=None if instance.link is msgspec.UNSET else block.loaded_bytes,
        )
        for block in instance.blocks
    )
    tasks = tuple(
        msgspec.structs.replace(
            task,
            algorithms=tuple(
                a
                if a.on == "host"
                else msgspec.structs.replace(a, workspace_bytes=ceil_to(a.workspace_bytes, page_bytes))
                for a in task.algorithms
            ),
        )
        for task in instance.tasks
    )
    pool = max(instance.pool_bytes, 0) // page_bytes * page_bytes
    budget = instance.resident_bytes + pool
    host = instance.host_budget_bytes
    if host is not msgspec.UNSET:
        host += sum(ceil_to(block.bytes, page_bytes) - block.bytes for block in instance.blocks)
    pages = Transform(kind="pages", bytes=page_bytes)
    return _changed(instance, pages, blocks=blocks, tasks=tasks, budget_bytes=budget, host_budget_bytes=host)


def page_bytes_of(instance: Instance) -> int | None:
    """Return the bytes of a page if the instance is one of `in_pages`, else None."""
    pages = [transform.bytes for transform in instance.applied if transform.kind == "pages"]
    return pages[-1] if pages else None


def has_been(instance: Instance, kind: TransformKind) -> bool:
    """Return whether an instance has been through a transform."""
    return any(transform.kind == kind for transform in instance.applied)


def in_parts(instance: Instance) -> bool:
    """Return whether tensors were split into parts, even if none was large enough."""
    return has_been(instance, "parts") or any(block.tensor is not None for block in instance.blocks)


def split_parts(instance: Instance, size: int | Mapping[int, int]) -> Instance:
    """Return the instance with tensors in parts of at most `size` bytes.

    Parts are blocks: they are offloaded, prefetched and released one by one. The parts of one tensor have the
    same size, except for the last, and begin at multiples of 2 MiB. Their copies together take as long as the
    tensor's copy.

    Parameters
    ----------
    instance
        An instance whose tensors are whole.
    size
        Greatest bytes of a part: one number for all tensors, or one for each block to split.

    Raises
    ------
    PebblerError
        When a size is below 2 MiB, the alignment does not divide 2 MiB, or blocks are parts already.
    """
    _require_whole(instance)
    if any(one.takes_over for task in instance.tasks for one in task.algorithms):
        raise PebblerError(f"{instance.name}: tensors in parts take over no place; leave out 'takes_over'")
    if instance.optional:
        raise PebblerError(
            f"{instance.name}: algorithms make all parts of tensors; leave out 'outputs' of algorithms"
        )
    most = size if isinstance(size, Mapping) else dict.fromkeys(range(len(instance.blocks)), size)
    if any(type(one) is not int for one in most.values()):
        raise PebblerError(f"size is {quoted(size)}; give the whole bytes of a part, or those of each block")
    least = min(most.values(), default=PAGE_BYTES)
    if least < PAGE_BYTES:
        raise PebblerError(f"parts of {least} bytes are smaller than a page; give 2MiB or more")
    if PAGE_BYTES % instance.alignment_bytes:
        raise PebblerError(
            f"{instance.name}: its alignment of {instance.alignment_bytes} does not divide 2 MiB; "
            "parts need one that does"
        )
    blocks: list[Block] = []
    parts: list[range] = []
    for d, block in enumerate(instance.blocks):
        pieces = _parts(block, most[d] // PAGE_BYTES * PAGE_BYTES) if d in most else [block]
        parts.append(range(len(blocks), len(blocks) + len(pieces)))
        blocks.extend(pieces)

    def split(old: Sequence[int]) -> tuple[int, ...]:
        return tuple(new for d in old for new in parts[d])

    tasks = tuple(
        msgspec.structs.replace(
            task,
            inputs=split(task.inputs),
            outputs=split(task.outputs),
            updates=split(task.updates),
            algorithms=tuple(
                one if one.inputs is msgspec.UNSET else msgspec.structs.replace(one, inputs=split(one.inputs))
                for one in task.algorithms
            ),
        )
        for task in instance.tasks
    )
    transform = Transform(kind="parts", bytes=None if isinstance(size, Mapping) else size)
    return _changed(instance, transform, name=f"{instance.name}-parts", blocks=tuple(blocks), tasks=tasks)


def _parts(block: Block, most: int) -> list[Block]:
    if block.bytes <= most:
        return [block]
    size = ceil_to(-(-block.bytes // -(-block.bytes // most)), PAGE_BYTES)
    begins = range(0, block.bytes, size)
    return [
        msgspec.structs.replace(
            block,
            name=f"{block.name}[{index}]",
            bytes=min(size, block.bytes - begin),
            tensor=block.name,
            begin=begin,
            **{
                key: _share(getattr(block, key), begin, min(begin + size, block.bytes), block.bytes)
                for key in ("offload_ns", "prefetch_ns", "move_ns")
            },
        )
        for index, begin in enumerate(begins)
    ]


def _mask(instance: Instance, block: Block, name: str) -> Block:
    """Return a block with a byte for each value of another."""
    size = -(-block.bytes // VALUE_BYTES[instance.made_from.precision])
    return Block(
        name=name,
        bytes=size,
        offload_ns=_share(block.offload_ns, 0, size, block.bytes),
        prefetch_ns=_share(block.prefetch_ns, 0, size, block.bytes),
        move_ns=_share(block.move_ns, 0, size, block.bytes),
    )


def _share(time: int | None, begin: int, end: int, whole: int) -> int | None:
    """Return the time of the bytes from `begin` to `end`: all shares add up to the time of the whole."""
    return None if time is None else time * end // whole - time * begin // whole


def _require_whole(instance: Instance) -> None:
    require_instance(instance)
    if any(block.tensor is not None for block in instance.blocks):
        raise PebblerError(f"{instance.name}: its tensors are in parts already; start from whole ones")


def _changed(instance: Instance, transform: Transform, **changes: Any) -> Instance:
    return msgspec.structs.replace(instance, transforms=(*instance.applied, transform), **changes)
