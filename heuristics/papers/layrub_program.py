"""Layrub as its program does it, where its paper (Jin et al., TACO 2018) is silent or says otherwise.

The rules were read in ``net.cpp`` of github.com/CGCL-codes/Layrub, a Caffe that the authors changed:

- **Data** takes the first block that is free, which grows to the largest size that it ever holds. A block is
  free again when no later layer of the forward pass refers to it, and not before two layers later. In the
  backward pass, data returns to its block.
- **Forks**, data that several layers refer to, lie in one of two further buffers, in turn. The blocks that
  they would have taken are reserved all the same.
- **Gradients** lie over their data where that is dead. The gradients that a fork's readers make have a buffer
  for the first reader, one for the second and so on, which all forks share. Others are allocated and freed.
- **What a layer keeps** for its own backward pass (signs of ReLUs, values of batch norm) has one buffer for
  all layers of its kind. It leaves when the layer has ended, not beside it.
- **Copies**: every layer's inputs leave with the last layer that refers to them and come back one layer
  ahead, whether the backward pass reads them or not; those of the last three layers stay. To free a gradient
  waits for the GPU, so that loads start only when that layer has ended. All copies have one stream, and both
  streams meet after every layer.

Where the program would wait for a block in use, or overwrite it, data takes another one here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from itertools import accumulate

from ...instances.instance import Instance
from ...instances.units import ceil_to, format_size
from ..clock import limited, look
from ..methods import Answer, Limits, Refusal, register
from ..program.builder import ProgramBuilder
from ..program.placement import Piece, build_planned, build_program
from ..program.pool import Pool, Range
from ..program.sketch import Sketch
from .layrub import caffe_algorithms, over_dead, planned
from .layrub_rules import Rules, rules_of

_FORK, _FORKS = "fork", 2
"""Name and number of the buffers of forks."""


@register(
    "layrub-program",
    "Layrub as its program does it: the first free block grows, and is free two layers later",
    "Layrub (TACO 2018), github.com/CGCL-codes/Layrub",
    shown="named",
    transform=planned,
    carries="read",
)
@limited
def layrub_program(instance: Instance, limits: Limits) -> Answer:
    """Schedule by the rules of Layrub's program.

    Paged memory and tensors in parts have no blocks to take: there, data lies where the pool has room.

    Raises
    ------
    Refusal
        When the buffers, or what is allocated beside them, do not fit.
    """
    rules, algorithms = rules_of(instance), caffe_algorithms(instance)

    def issue(builder: ProgramBuilder) -> None:
        _Iteration(instance, builder, rules, algorithms).all()

    if limits.memory != "contiguous" or any(block.tensor is not None for block in instance.blocks):
        builder = build_program(instance, limits.memory, issue, one_copy_queue=True)
    else:
        builder = build_planned(instance, issue, partial(_places, rules), one_copy_queue=True)
    return Answer(builder.finish("layrub-program"))


@dataclass(slots=True)
class _Iteration:
    """One iteration, layer by layer.

    Attributes
    ----------
    instance, builder, rules
        The instance, the program under construction, and what was decided before.
    algorithms
        Index of the algorithm of each task.
    last
        The operations that have to end before the next layer's copies start: those of the layer before.
    copies
        The copies that the next layer waits for.
    """

    instance: Instance
    builder: ProgramBuilder
    rules: Rules
    algorithms: Sequence[int]
    last: list[int] = field(default_factory=list)
    copies: list[int] = field(default_factory=list)

    def all(self) -> None:
        """Execute every layer."""
        for step in range(len(self.rules.layers)):
            self.step(step)

    def step(self, step: int) -> None:
        """Execute a layer in one pass, with the copies that overlap it."""
        here, builder, rules = self.rules.layers[step], self.builder, self.rules
        before, pending, self.copies = [*self.last, *self.copies], self.copies, []
        pending += builder.fetch((d for d in here.needs if not builder.is_resident(d)), before)
        leaving = [d for d in rules.leaves.get(step, ()) if d in here.writes or not builder.on_host(d)]
        self.copies += [builder.offload(d, before) for d in leaving if d not in here.writes]
        if step not in rules.waits:
            self.load(step + 1, before)
        for k in here.unit.tasks:
            self.last = [builder.run(k, self.algorithms[k], pending)]
            builder.release_dead(k, keep=rules.dead)
            pending = []
        self.copies += [builder.offload(d) for d in leaving if d in here.writes]
        if step in rules.waits:
            self.load(step + 1, self.last)
        for d in (*rules.frees.get(step, ()), *rules.returns.get(step + 1, ())):
            if builder.is_resident(d):
                (builder.retire if d in rules.dead else builder.release)(d)

    def load(self, step: int, before: Sequence[int]) -> None:
        """Load what a layer reads, and the inputs of its forward pass, read or not."""
        if step < len(self.rules.layers):
            wanted = dict.fromkeys((*self.rules.layers[step].needs, *self.rules.returns.get(step, ())))
            absent = (d for d in wanted if self.builder.on_host(d) and not self.builder.is_resident(d))
            self.copies += self.builder.fetch(absent, before)


@dataclass(slots=True)
class _Buffers:
    """Buffers for one purpose, each as large as the largest piece that it holds.

    Attributes
    ----------
    sizes, ends
        Per buffer, its bytes, and the end of the last piece that it was given to.
    """

    sizes: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)

    def take(self, piece: Piece, home: int | None = None, turns: int = 1) -> int:
        """Give a piece its home if that is free, else the first free buffer, else a new one.

        With several `turns`, so many buffers are opened first; then the one is taken that was free first.
        """
        free = [b for b, end in enumerate(self.ends) if end <= piece.begin]
        if home in free:
            chosen = free[free.index(home)]
        elif free and len(self.sizes) >= turns:
            chosen = free[0] if turns == 1 else min(free, key=lambda b: self.ends[b])
        else:
            chosen = len(self.sizes)
            self.sizes.append(0)
            self.ends.append(0)
        self.sizes[chosen] = max(self.sizes[chosen], piece.bytes)
        self.ends[chosen] = piece.end
        return chosen


@dataclass(slots=True)
class _Layout:
    """Where the placements of a program lie: in buffers, or allocated.

    Attributes
    ----------
    members
        Per placement, the placement with which it shares its place: itself, or its data's.
    pieces
        What these take, and when.
    buffers
        All buffers, by purpose.
    lies
        For each piece in a buffer, the purpose and the number of the buffer.
    """

    members: list[int]
    pieces: dict[int, Piece]
    buffers: dict[str, _Buffers]
    lies: dict[int, tuple[str, int]]


def buffer_bytes(instance: Instance) -> dict[str, int]:
    """Return the bytes of Layrub's buffers by purpose.

    They are ``data``, ``fork``, ``split 0`` and so on for the readers of a fork, and the kinds of layers that
    keep something, as ``relu 0``.

    Raises
    ------
    OutOfMemoryError
        When the budget is less than what is in use at once.
    """
    rules = rules_of(instance)
    sketch = Sketch(instance)
    _Iteration(instance, sketch, rules, caffe_algorithms(instance)).all()
    return {name: sum(buffers.sizes) for name, buffers in _layout(rules, sketch).buffers.items()}


def _places(rules: Rules, sketch: ProgramBuilder) -> list[int]:
    """Choose the offset of every placement of a program: in buffers side by side, or allocated behind them.

    Raises
    ------
    Refusal
        When the buffers, or what is allocated behind them, do not fit.
    """
    instance, layout = sketch.instance, _layout(rules, sketch)
    sizes = {(name, b): size for name, ones in layout.buffers.items() for b, size in enumerate(ones.sizes)}
    total = sum(sizes.values())
    if total > instance.pool_bytes:
        raise Refusal(
            f"the {len(sizes)} regions take {format_size(total)}, "
            f"of a pool of {format_size(max(instance.pool_bytes, 0))}"
        )
    offsets = dict(zip(sizes, accumulate(sizes.values(), initial=0), strict=False))
    rest = {group: piece for group, piece in layout.pieces.items() if group not in layout.lies}
    allocated = _allocated(rest, Pool(instance.pool_bytes - total, instance.alignment_bytes))
    places = {group: offsets[buffer] for group, buffer in layout.lies.items()}
    places |= {group: total + offset for group, offset in allocated.items()}
    return [places[group] for group in layout.members]


def _layout(rules: Rules, sketch: ProgramBuilder) -> _Layout:
    """Give what has a buffer its buffer, in the order of time."""
    blocks, lives = sketch.placements(), sketch.lifetimes()
    layout = _Layout(over_dead(sketch, rules.over), {}, defaultdict(_Buffers), {})
    for group, (size, begin, end) in zip(layout.members, lives, strict=True):
        piece = Piece(ceil_to(size, sketch.instance.alignment_bytes), begin, end)
        one = layout.pieces.get(group, piece)
        layout.pieces[group] = Piece(max(piece.bytes, one.bytes), min(begin, one.begin), max(end, one.end))
    homes: dict[int, int] = {}
    for group, piece in sorted(layout.pieces.items(), key=lambda item: item[1].begin):
        look()
        d = blocks[group]
        if d is None or d not in rules.buffers:
            continue
        name, turns = (_FORK, _FORKS) if d in rules.forks else (rules.buffers[d], 1)
        if d in rules.forks and d not in homes:
            layout.buffers[rules.buffers[d]].take(piece)
        layout.lies[group] = name, layout.buffers[name].take(piece, homes.get(d), turns)
        homes.setdefault(d, layout.lies[group][1])
    return layout


def _allocated(pieces: dict[int, Piece], pool: Pool) -> dict[int, int]:
    """Allocate and free pieces in the order of time; return the offset of each.

    Raises
    ------
    Refusal
        When a piece has no place.
    """
    offsets: dict[int, int] = {}
    there: list[tuple[int, Range]] = []
    for group, piece in sorted(pieces.items(), key=lambda item: item[1].begin):
        look()
        while there and there[0][0] <= piece.begin:
            pool.release((heappop(there)[1],))
        place = pool.allocate(piece.bytes)
        if place is None:
            raise Refusal(
                f"no place for {format_size(piece.bytes)} beside the regions: {format_size(pool.free_bytes)} "
                f"free, largest hole {format_size(pool.largest_hole)}"
            )
        offsets[group] = place[0]
        heappush(there, (piece.end, place))
    return offsets
