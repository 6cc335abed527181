"""The instance: one training iteration of a network on one GPU, under a memory budget.

The classes mirror the instance file key by key (format ``pebbler/instance/1``), so that the file, its
schema and the objects cannot drift apart. Blocks, tasks and algorithms are referred to by index from 0;
tasks run in the order of the list. Times are integer nanoseconds and sizes integer bytes. It is long because
the file has these keys and rules.
"""

from __future__ import annotations

from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal, get_args

import msgspec

from .applied import Transform, transforms_of_words
from .errors import FormatError
from .figures import (
    MILLION,
    Millionths,
    are_all,
    are_naturals,
    are_optional,
    are_pairs,
    is_millionths,
    is_natural,
    is_one_of,
    is_positive,
    is_text,
    require_names,
    require_types,
)
from .figures import Natural as Natural
from .figures import Positive as Positive
from .figures import Text as Text
from .gpus.cluster import SECOND, Cluster, load_of
from .origin import LayerTasks, Origin, of_entries, of_labels, require_layers
from .units import LARGEST, as_html, as_lines, format_size

_UNKNOWN = Origin()

Initially = Literal["absent", "device", "host", "carried"]
"""Where a block is when a round begins."""

_INITIALLY = get_args(Initially)


class Block(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A piece of data that is on the device, on the host, or on both.

    Attributes
    ----------
    name
        For people; blocks are referred to by index.
    bytes
        Size.
    offload_ns, prefetch_ns, move_ns
        Time of a copy to the host, to the device and inside the device; None: it never moves that way.
    initially
        ``absent``; ``device``: resident at time 0 and valid on the host; ``host``: to be prefetched;
        ``carried``: where the round before has left it, as the schedule says.
    finally_
        Where a valid copy must be when the round ends (``finally`` in the file).
    tensor, begin
        The block is the part of `tensor` from byte `begin` on; both or neither.
    load_bytes
        What a copy puts on a link that both directions share, if less than `bytes`: see `loaded_bytes`.
    """

    name: Text
    bytes: Positive
    offload_ns: Natural | None
    prefetch_ns: Natural | None
    move_ns: Natural | None = None
    initially: Initially = "absent"
    finally_: Literal["anywhere", "device", "host"] = msgspec.field(name="finally", default="anywhere")
    tensor: Text | None = None
    begin: Natural | None = None
    load_bytes: Positive | None = None

    def __post_init__(self) -> None:
        if not (
            is_text(self.name)
            and is_positive(self.bytes)
            and are_optional(self.offload_ns, self.prefetch_ns, self.move_ns)
            and is_one_of(self.initially, _INITIALLY)
            and is_one_of(self.finally_, ("anywhere", "device", "host"))
            and (self.tensor is None or is_text(self.tensor))
            and (self.begin is None or is_natural(self.begin))
            and (self.load_bytes is None or is_positive(self.load_bytes))
        ):
            require_types(self)

    @property
    def loaded_bytes(self) -> int:
        """Bytes that a copy puts on a shared link: in whole pages, those of the block without the rest."""
        return self.bytes if self.load_bytes is None else self.load_bytes


class Algorithm(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One way to compute a task: its duration in nanoseconds, its workspace in bytes, and where it runs.

    `inputs` are the blocks that it reads in place of the task's inputs; unset: it reads these. `outputs` are
    those of the task's outputs that it makes; unset: it makes all. `takes_over` are pairs of an output and an
    input whose place the output may take, if that is there no longer then.
    """

    name: Text
    duration_ns: Natural
    workspace_bytes: Natural
    on: Literal["device", "host"] = "device"
    inputs: tuple[Natural, ...] | msgspec.UnsetType = msgspec.UNSET
    outputs: tuple[Natural, ...] | msgspec.UnsetType = msgspec.UNSET
    takes_over: tuple[tuple[Natural, Natural], ...] = ()

    def __post_init__(self) -> None:
        if not (
            is_text(self.name)
            and is_natural(self.duration_ns)
            and is_natural(self.workspace_bytes)
            and is_one_of(self.on, ("device", "host"))
            and (self.inputs is msgspec.UNSET or are_naturals(self.inputs))
            and (self.outputs is msgspec.UNSET or are_naturals(self.outputs))
            and (self.takes_over == () or are_pairs(self.takes_over))
        ):
            require_types(self)


class Slowdown(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a task loses of its speed while copies of each direction are under way, in millionths."""

    offload: Millionths = 0
    prefetch: Millionths = 0

    def __post_init__(self) -> None:
        if not (is_millionths(self.offload) and is_millionths(self.prefetch)):
            require_types(self)


class Link(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What copies in both directions get together, at most."""

    both_bytes_per_second: Positive

    def __post_init__(self) -> None:
        if not is_positive(self.both_bytes_per_second):
            require_types(self)

    @property
    def rate(self) -> Fraction:
        """What the link passes, in bytes per nanosecond."""
        return Fraction(self.both_bytes_per_second, SECOND)

    def load(self, size: int, own_ns: int) -> Fraction:
        """Return the bytes that a copy puts on the link, by its size and its own time of at least 1 ns."""
        return load_of(size, own_ns, self.both_bytes_per_second)


class Task(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A step of the computation.

    Attributes
    ----------
    name
        For people; tasks are referred to by index.
    inputs, outputs, updates
        Disjoint sets of block indices: read by all algorithms without inputs of their own; written for the
        first time, by all algorithms without outputs of their own; read and rewritten in place.
    algorithms
        At least one.
    recomputable
        Whether the task may run again.
    slowdown_ppm
        What copies take of its speed; unset: nothing.
    """

    name: Text
    inputs: tuple[Natural, ...]
    outputs: tuple[Natural, ...]
    algorithms: tuple[Algorithm, ...]
    updates: tuple[Natural, ...] = ()
    recomputable: bool = False
    slowdown_ppm: Slowdown | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        if not (
            is_text(self.name)
            and are_naturals(self.inputs)
            and are_naturals(self.outputs)
            and are_naturals(self.updates)
            and are_all(self.algorithms, Algorithm)
            and type(self.recomputable) is bool
            and (self.slowdown_ppm is msgspec.UNSET or type(self.slowdown_ppm) is Slowdown)
        ):
            require_types(self)

    @property
    def blocks(self) -> tuple[int, ...]:
        """Every block that the task touches with some algorithm."""
        return (*self.may_read, *self.outputs, *self.updates)

    def reads(self, algorithm: int) -> tuple[int, ...]:
        """Return the blocks that a run with an algorithm reads and leaves as they are."""
        own = self.algorithms[algorithm].inputs
        return self.inputs if own is msgspec.UNSET else own

    def makes(self, algorithm: int) -> tuple[int, ...]:
        """Return the outputs that a run with an algorithm makes."""
        own = self.algorithms[algorithm].outputs
        return self.outputs if own is msgspec.UNSET else own

    def touches(self, algorithm: int) -> tuple[int, ...]:
        """Return every block that a run with an algorithm touches."""
        return (*self.reads(algorithm), *self.makes(algorithm), *self.updates)

    def holds(self, algorithm: int) -> tuple[int, ...]:
        """Return the blocks that a run with an algorithm reads and whose places no output may take over."""
        taken = [d for _, d in self.algorithms[algorithm].takes_over]
        return tuple([d for d in self.reads(algorithm) if d not in taken])

    @property
    def reads_vary(self) -> bool:
        """Whether what the task reads or makes, or whose place it may take over, depends on the algorithm."""
        unset = msgspec.UNSET
        return [
            a for a in self.algorithms if a.inputs is not unset or a.outputs is not unset or a.takes_over
        ] != []

    @property
    def may_read(self) -> tuple[int, ...]:
        """What some algorithm reads: the inputs, then what algorithms read beside them."""
        if not self.reads_vary:
            return self.inputs
        return tuple(dict.fromkeys([*self.inputs, *(d for read in self._own_inputs() for d in read)]))

    @property
    def must_read(self) -> tuple[int, ...]:
        """What every algorithm reads."""
        if not self.reads_vary:
            return self.inputs
        return tuple([d for d in self.inputs if all(d in read for read in self._own_inputs())])

    @property
    def must_hold(self) -> tuple[int, ...]:
        """What every algorithm reads and has in memory beside its outputs."""
        if not self.reads_vary:
            return self.inputs
        held = [self.holds(a) for a in range(len(self.algorithms))]
        return tuple([d for d in self.must_read if all(d in one for one in held)])

    @property
    def must_make(self) -> tuple[int, ...]:
        """The outputs that every algorithm makes."""
        own = [one.outputs for one in self.algorithms if one.outputs is not msgspec.UNSET]
        return tuple([d for d in self.outputs if all(d in made for made in own)]) if own else self.outputs

    def _own_inputs(self) -> list[tuple[int, ...]]:
        return [one.inputs for one in self.algorithms if one.inputs is not msgspec.UNSET]

    @property
    def device_algorithms(self) -> tuple[Algorithm, ...]:
        """Those that run on the device."""
        return tuple([algorithm for algorithm in self.algorithms if algorithm.on == "device"])

    @property
    def may_run_on_host(self) -> bool:
        """Whether some algorithm runs on the host, so that the task need not run on the device."""
        return "host" in [algorithm.on for algorithm in self.algorithms]  # sooner than any: it is asked often


class Instance(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
    """A scheduling problem: blocks, tasks in order, copy engines and a memory budget.

    Attributes
    ----------
    engines
        ``duplex``: one copy stream per direction; ``single``: one for both.
    budget_bytes
        Memory for everything, `resident_bytes` (weights and their gradients) included.
    alignment_bytes
        Offsets are multiples of it.
    rounds
        How often the round that the file describes is executed.
    meta
        Free: it is carried along, and nothing looks at it.
    cluster
        Several GPUs, each of which executes all tasks under the budget; unset: one GPU.
    transforms
        What the instance has been through, in order; unset: nothing. Earlier versions wrote them as words
        under ``meta``, from where they are taken over.
    origin
        What the instance was made from; unset: nothing is known.
    layers
        The layers with their tasks, in forward order; unset: none are named. Where neither of these two is
        set, both are taken over from ``meta``, under which earlier versions wrote them.
    host_budget_bytes
        Host memory for copies of blocks; unset: as much as there are.
    link
        What copies in both directions share; unset: nothing.

    Raises
    ------
    FormatError
        When a rule of the format is broken.
    """

    format: Literal["pebbler/instance/1"] = "pebbler/instance/1"
    name: Text
    engines: Literal["duplex", "single"]
    budget_bytes: Natural
    resident_bytes: Natural
    alignment_bytes: Positive = 512
    rounds: Positive = 1
    blocks: tuple[Block, ...]
    tasks: tuple[Task, ...]
    meta: dict[str, Any] = {}
    cluster: Cluster | msgspec.UnsetType = msgspec.UNSET
    transforms: tuple[Transform, ...] | msgspec.UnsetType = msgspec.UNSET
    origin: Origin | msgspec.UnsetType = msgspec.UNSET
    layers: tuple[LayerTasks, ...] | msgspec.UnsetType = msgspec.UNSET
    host_budget_bytes: Natural | msgspec.UnsetType = msgspec.UNSET
    link: Link | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        if not (
            is_one_of(self.format, ("pebbler/instance/1",))
            and is_text(self.name)
            and is_one_of(self.engines, ("duplex", "single"))
            and is_natural(self.budget_bytes)
            and is_natural(self.resident_bytes)
            and is_positive(self.alignment_bytes)
            and is_positive(self.rounds)
            and are_all(self.blocks, Block)
            and are_all(self.tasks, Task)
            and type(self.meta) is dict
            and (self.cluster is msgspec.UNSET or type(self.cluster) is Cluster)
            and (self.transforms is msgspec.UNSET or are_all(self.transforms, Transform))
            and (self.origin is msgspec.UNSET or type(self.origin) is Origin)
            and (self.layers is msgspec.UNSET or are_all(self.layers, LayerTasks))
            and (self.host_budget_bytes is msgspec.UNSET or is_natural(self.host_budget_bytes))
            and (self.link is msgspec.UNSET or type(self.link) is Link)
        ):
            require_types(self)
        if "transforms" in self.meta and self.transforms is msgspec.UNSET:
            _take_over_transforms(self)
        if self.meta and self.origin is msgspec.UNSET and self.layers is msgspec.UNSET:
            _take_over_origin(self)
        require_names("blocks", [block.name for block in self.blocks])
        require_names("tasks", [task.name for task in self.tasks])
        _require_blocks(self)
        _require_tasks(self)
        _require_time(self)
        if self.cluster is not msgspec.UNSET:
            self.cluster.require_tasks(len(self.tasks))
            _require_one_gpu(self)
        require_layers(self.named_layers, len(self.tasks), "layers")

    def __str__(self) -> str:
        return as_lines(self._facts())

    def _repr_html_(self) -> str:
        return as_html(self._facts())

    def _facts(self) -> list[tuple[str, str]]:
        origin, copies = self.made_from, {"duplex": "both ways at once", "single": "one at a time"}
        words = (
            " on ".join(filter(None, (origin.network, origin.device))),
            f"a batch of {origin.batch}" if origin.batch else "",
            f"{origin.sub_batch} in a round" if origin.sub_batch else "",
        )
        moved, layers = sum(block.bytes for block in self.blocks), self.named_layers
        facts = [
            ("instance", self.name),
            ("made from", ", ".join(filter(None, words))),
            ("tasks", f"{len(self.tasks)}" + (f", of {len(layers)} layers" if layers else "")),
            ("blocks", f"{len(self.blocks)}, {format_size(moved)} in all"),
            (
                "budget",
                f"{format_size(self.budget_bytes)}, {format_size(self.resident_bytes)} of it always taken",
            ),
            ("copies", copies[self.engines]),
            (
                "link",
                ""
                if self.link is msgspec.UNSET
                else f"{self.link.both_bytes_per_second / 1e9:g} GB/s for both directions",
            ),
            (
                "host memory",
                "" if self.host_budget_bytes is msgspec.UNSET else format_size(self.host_budget_bytes),
            ),
            ("transforms", ", ".join(transform.kind for transform in self.applied)),
            ("rounds", str(self.rounds)),
            ("GPUs", str(self.gpus) if self.gpus > 1 else ""),
        ]
        return [(name, value) for name, value in facts if value]

    @property
    def made_from(self) -> Origin:
        """What the instance was made from."""
        return _UNKNOWN if self.origin is msgspec.UNSET else self.origin

    @property
    def named_layers(self) -> tuple[LayerTasks, ...]:
        """The layers that the instance names, in forward order; none without them."""
        return () if self.layers is msgspec.UNSET else self.layers

    @property
    def applied(self) -> tuple[Transform, ...]:
        """The transforms that the instance has been through."""
        return () if self.transforms is msgspec.UNSET else self.transforms

    @property
    def gpus(self) -> int:
        """How many GPUs execute the tasks."""
        return 1 if self.cluster is msgspec.UNSET else self.cluster.gpus

    @property
    def has_host_budget(self) -> bool:
        """Whether copies on the host take memory that ends."""
        return self.host_budget_bytes is not msgspec.UNSET

    @property
    def nothing_returns(self) -> bool:
        """Whether no block can be copied from the host, so that second runs alone save memory."""
        return all(block.prefetch_ns is None for block in self.blocks)

    @cached_property
    def has_host_work(self) -> bool:
        """Whether some task may run on the host."""
        return any(task.may_run_on_host for task in self.tasks)

    @cached_property
    def reads_vary(self) -> bool:
        """Whether what some task reads or makes depends on its algorithm."""
        return any(task.reads_vary for task in self.tasks)

    @cached_property
    def optional(self) -> frozenset[int]:
        """Blocks that some algorithms of their task leave out."""
        return frozenset(d for task in self.tasks for d in task.outputs if d not in task.must_make)

    @cached_property
    def is_slowed(self) -> bool:
        """Whether copies slow some task down."""
        return any(task.slowdown_ppm is not msgspec.UNSET for task in self.tasks)

    @cached_property
    def is_coupled(self) -> bool:
        """Whether copies that are under way change the speed of each other, or of runs."""
        return self.link is not msgspec.UNSET or self.is_slowed

    @cached_property
    def carried(self) -> tuple[int, ...]:
        """Blocks that a round finds where the round before has left them, in order."""
        return tuple(d for d, block in enumerate(self.blocks) if block.initially == "carried")

    @property
    def pool_bytes(self) -> int:
        """Memory for blocks and workspaces: the budget less the resident bytes; may be negative."""
        return self.budget_bytes - self.resident_bytes

    @cached_property
    def uses(self) -> tuple[tuple[int, ...], ...]:
        """Per block, the tasks that touch it with some algorithm, in order."""
        uses: list[list[int]] = [[] for _ in self.blocks]
        for k, task in enumerate(self.tasks):
            for d in task.blocks:
                uses[d].append(k)
        return tuple(map(tuple, uses))

    @cached_property
    def writers(self) -> tuple[tuple[int, ...], ...]:
        """Per block, the tasks that write or update it, in order: each starts a version."""
        writers: list[list[int]] = [[] for _ in self.blocks]
        for k, task in enumerate(self.tasks):
            for d in (*task.outputs, *task.updates):
                writers[d].append(k)
        return tuple(map(tuple, writers))


def _take_over_transforms(instance: Instance) -> None:
    """Move what an earlier version wrote under ``meta.transforms`` to its key."""
    meta = dict(instance.meta)
    found = transforms_of_words(meta.pop("transforms"))
    msgspec.structs.force_setattr(instance, "transforms", found or msgspec.UNSET)
    msgspec.structs.force_setattr(instance, "meta", meta)


def _take_over_origin(instance: Instance) -> None:
    """Move what an earlier version wrote of origin and layers under ``meta`` to their keys."""
    meta = dict(instance.meta)
    origin = of_labels(meta, instance.name)
    if isinstance(meta.get("layers"), list | tuple):  # else it is the user's, such as a number of layers
        layers = of_entries(meta.pop("layers"), instance.name)
        require_layers(layers, len(instance.tasks), f"{instance.name}: meta.layers")
        msgspec.structs.force_setattr(instance, "layers", layers)
    if origin != _UNKNOWN:
        msgspec.structs.force_setattr(instance, "origin", origin)
    msgspec.structs.force_setattr(instance, "meta", meta)


def _require_blocks(instance: Instance) -> None:
    """`tensor` and `begin` come together; parts of a tensor do not overlap."""
    parts: dict[str, list[tuple[int, int, str]]] = {}
    for d, block in enumerate(instance.blocks):
        where = f"blocks[{d}] ('{block.name}')"
        if (block.tensor is None) != (block.begin is None):
            raise FormatError(f"{where}: 'tensor' and 'begin' come together; give both or neither")
        if block.initially == "carried" and block.finally_ != "anywhere":
            raise FormatError(f"{where}: it is carried, so it ends where it begins; leave out 'finally'")
        if block.loaded_bytes > block.bytes:
            raise FormatError(
                f"{where}: 'load_bytes' is {block.load_bytes}, more than its {block.bytes} bytes; leave it "
                "out"
            )
        if block.tensor is not None and block.begin is not None:
            if block.begin % instance.alignment_bytes:
                raise FormatError(
                    f"{where}: 'begin' is {block.begin}, not a multiple of alignment_bytes "
                    f"({instance.alignment_bytes})"
                )
            parts.setdefault(block.tensor, []).append((block.begin, block.bytes, block.name))
    for tensor, pieces in parts.items():
        pieces.sort()
        for (begin, size, name), (following, _, other) in pairwise(pieces):
            if begin + size > following:
                raise FormatError(f"tensor '{tensor}': its parts '{name}' and '{other}' overlap")


def _require_tasks(instance: Instance) -> None:
    """Indices exist, block sets are disjoint, one producer a block, nothing is read before it exists.

    What runs on the host runs once, and copies take no more than all of a task's speed.
    """
    if not instance.tasks:
        raise FormatError("tasks: there is none; an instance has at least one task")
    exists = [block.initially != "absent" for block in instance.blocks]
    for k, task in enumerate(instance.tasks):
        where = f"tasks[{k}] ('{task.name}')"
        if not task.algorithms:
            raise FormatError(f"{where}: it has no algorithm; give it at least one")
        if task.recomputable and any(one.on == "host" for one in task.algorithms):
            raise FormatError(f"{where}: it may run again and on the host; leave out one of the two")
        if task.slowdown_ppm is not msgspec.UNSET and instance.engines == "duplex":
            together = task.slowdown_ppm.offload + task.slowdown_ppm.prefetch
            if together > MILLION:
                raise FormatError(
                    f"{where}: slowdown_ppm takes {together} millionths, more than all of its speed; make "
                    f"'offload' and 'prefetch' at most {MILLION} together"
                )
        touched = task.blocks
        for d in touched:
            if d >= len(instance.blocks):
                raise FormatError(f"{where}: block index {d} is out of range 0..{len(instance.blocks) - 1}")
        if len(set(touched)) != len(touched):
            raise FormatError(f"{where}: a block is listed twice in its inputs, outputs and updates")
        if task.reads_vary:
            _require_own_inputs(task, where)
            _require_own_outputs(task, where)
            _require_places(instance, task, where)
        for d in (*task.may_read, *task.updates):
            if not exists[d]:
                raise FormatError(f"{where}: it reads '{instance.blocks[d].name}' before it exists")
        for d in task.outputs:
            if exists[d]:
                raise FormatError(
                    f"{where}: it outputs '{instance.blocks[d].name}', which already exists; "
                    "a later write is an update"
                )
            exists[d] = True
    if instance.reads_vary and instance.has_host_work:
        raise FormatError(
            "tasks: algorithms of some read or make different blocks, and some may run on the host; leave "
            "out 'inputs', 'outputs' and 'takes_over' of algorithms, or 'on'"
        )
    if instance.reads_vary:
        _require_optional(instance)
    for d, block in enumerate(instance.blocks):
        if block.finally_ != "anywhere" and not exists[d]:
            raise FormatError(f"blocks[{d}] ('{block.name}'): it has a place finally but is never written")


def _require_own_inputs(task: Task, where: str) -> None:
    """Inputs of algorithms name each block once and differ from the task's, which some algorithm reads."""
    for a, one in enumerate(task.algorithms):
        if one.inputs is msgspec.UNSET:
            continue
        if len(set(one.inputs)) != len(one.inputs):
            raise FormatError(f"{where}: 'inputs' of algorithm {a} ('{one.name}') list a block twice")
        if set(one.inputs) == set(task.inputs):
            raise FormatError(
                f"{where}: 'inputs' of algorithm {a} ('{one.name}') are those of the task; leave them out"
            )
    if all(one.inputs is not msgspec.UNSET for one in task.algorithms):
        raise FormatError(
            f"{where}: no algorithm reads its inputs; make those of an algorithm the task's, and leave them "
            "out there"
        )


def _require_own_outputs(task: Task, where: str) -> None:
    """Outputs of algorithms are some of the task's, each once, and some algorithm makes all of these."""
    for a, one in enumerate(task.algorithms):
        if one.outputs is msgspec.UNSET:
            continue
        at = f"{where}: 'outputs' of algorithm {a} ('{one.name}')"
        if len(set(one.outputs)) != len(one.outputs) or not set(one.outputs) <= set(task.outputs):
            raise FormatError(f"{at} are {list(one.outputs)}; name different outputs of the task")
        if set(one.outputs) == set(task.outputs):
            raise FormatError(f"{at} are those of the task; leave them out")
    if all(one.inputs is not msgspec.UNSET or one.outputs is not msgspec.UNSET for one in task.algorithms):
        raise FormatError(
            f"{where}: no algorithm reads its inputs and makes all of its outputs; give it one with neither "
            "'inputs' nor 'outputs'"
        )


def _require_optional(instance: Instance) -> None:
    """What algorithms leave out is a whole block, and nothing needs it that has no other algorithm."""
    needed = {d: task.name for task in instance.tasks for d in task.must_read} if instance.optional else {}
    for d in sorted(instance.optional):
        block, (k, *others) = instance.blocks[d], instance.writers[d]
        where = f"tasks[{k}] ('{instance.tasks[k].name}'): an algorithm leaves out '{block.name}'"
        if block.finally_ != "anywhere" or block.tensor is not None or others:
            raise FormatError(
                f"{where}, which has a place finally, is a part of a tensor, or is updated later; name it in "
                "its 'outputs'"
            )
        if d in needed:
            raise FormatError(
                f"{where}, and every algorithm of '{needed[d]}' reads it; give that an algorithm that does "
                "not"
            )


def _require_places(instance: Instance, task: Task, where: str) -> None:
    """Outputs that take over places are as large as the inputs that have them, and each is named once."""
    for a, one in enumerate(task.algorithms):
        at = f"{where}: 'takes_over' of algorithm {a} ('{one.name}')"
        outputs, inputs = [d for d, _ in one.takes_over], [x for _, x in one.takes_over]
        if len(set(outputs)) != len(outputs) or not set(outputs) <= set(task.makes(a)):
            raise FormatError(f"{at} begins its pairs with {outputs}; name different outputs that it makes")
        if len(set(inputs)) != len(inputs) or not set(inputs) <= set(task.reads(a)):
            raise FormatError(f"{at} ends its pairs with {inputs}; name different blocks that it reads")
        for d, x in one.takes_over:
            block, place = instance.blocks[d], instance.blocks[x]
            if block.bytes != place.bytes or block.tensor is not None or place.tensor is not None:
                raise FormatError(
                    f"{at}: '{block.name}' does not fit the place of '{place.name}'; name whole blocks of "
                    "one size"
                )


def _require_time(instance: Instance) -> None:
    """The tasks can run one after the other in a time that files hold."""
    if sum([one.duration_ns for task in instance.tasks for one in task.algorithms]) <= LARGEST:
        return  # so it is nearly always, without a look at which algorithms are the fastest
    least = sum(min(one.duration_ns for one in task.algorithms) for task in instance.tasks)
    if least > LARGEST:
        raise FormatError(
            f"tasks: their fastest algorithms take {least} ns in all, more than {LARGEST}, the largest "
            "figure in files; divide all times by the same number"
        )


def _require_one_gpu(instance: Instance) -> None:
    """Host memory has a budget, a link is shared, the host computes, and so on, with one GPU only."""
    if instance.host_budget_bytes is not msgspec.UNSET:
        raise FormatError(
            "host_budget_bytes: host memory of several GPUs has no budget yet; leave out it or 'cluster'"
        )
    if instance.link is not msgspec.UNSET:
        raise FormatError("link: several GPUs share the bus of 'cluster'; leave out one of the two")
    for k, task in enumerate(instance.tasks):
        where = f"tasks[{k}] ('{task.name}')"
        if task.slowdown_ppm is not msgspec.UNSET:
            raise FormatError(
                f"{where}: several GPUs are not slowed down yet; leave out 'slowdown_ppm' or 'cluster'"
            )
        if any(one.on == "host" for one in task.algorithms):
            raise FormatError(
                f"{where}: the host of several GPUs computes no task yet; leave out 'on' or 'cluster'"
            )
        if task.reads_vary:
            raise FormatError(
                f"{where}: on several GPUs all algorithms read and make the same yet; leave out their "
                "'inputs', 'outputs' and 'takes_over', or 'cluster'"
            )
    for d in instance.carried:
        raise FormatError(
            f"blocks[{d}] ('{instance.blocks[d].name}'): several GPUs carry no blocks yet; begin it on the "
            "device or on the host, or leave out 'cluster'"
        )
