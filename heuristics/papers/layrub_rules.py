"""What Layrub's program decides before anything runs: what leaves, what returns, and where it lies.

`layrub_program` tells the rules; this module derives what follows from them for an instance.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ...instances.instance import Instance
from ..carried import ends_on_device
from .layers import LayerStep
from .layerwise import Pass, offload_points, passes
from .layrub import gradients

SPLIT = "split"
"""Kind of the layer that sums up the gradients that a fork's readers make. Caffe's graph has it, ours not."""

_STAY = 3
"""The last layers of the forward pass, whose inputs do not leave."""
_DELAY = 2
"""Layers with an output after which a block may be taken again."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What is decided before anything runs.

    Attributes
    ----------
    layers
        The layers in both passes: the steps of the program.
    leaves, frees
        Per step, the blocks that leave with it, and those whose memory is given back when it ends.
    returns
        Per step, the blocks that are loaded for it although no task reads them any more.
    dead
        Blocks that the backward pass does not use, and whose memory `frees` gives back.
    over
        For each gradient that lies over data, that data.
    buffers
        For each block with a buffer, what the buffer is for; the other blocks are allocated.
    forks
        Data that several layers of the forward pass refer to.
    waits
        Steps beside which nothing is loaded, because they free a gradient.
    """

    layers: Sequence[Pass]
    leaves: Mapping[int, Sequence[int]]
    frees: Mapping[int, Sequence[int]]
    returns: Mapping[int, Sequence[int]]
    dead: frozenset[int]
    over: Mapping[int, int]
    buffers: Mapping[int, str]
    forks: frozenset[int]
    waits: frozenset[int]


class _Course(NamedTuple):
    """The steps at which data leaves, gives its memory back, and is loaded for no task; None: never."""

    leaves: int | None = None
    frees: int | None = None
    returns: int | None = None


def rules_of(instance: Instance) -> Rules:
    """Derive what Layrub's program decides for an instance before anything runs."""
    return _Deriving(instance).rules()


class _Deriving:
    """The instance seen from its layers.

    Attributes
    ----------
    steps, step_of
        The layers in both passes, and the step of each task.
    readers
        Per block, the forward steps that refer to it: those that read it and neither made it nor change it.
    last
        Per block, the step that uses it last.
    """

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.layers = passes(instance)
        self.steps: list[LayerStep] = [layer.unit for layer in self.layers]
        self.step_of = [u for u, step in enumerate(self.steps) for _ in step.tasks]
        self.readers: dict[int, list[int]] = defaultdict(list)
        for u, layer in enumerate(self.layers):
            if self._in("forward", u) and layer.unit.kind != SPLIT:
                for d in layer.needs:
                    if d not in layer.writes:
                        self.readers[d].append(u)
        self.last = [self.step_of[uses[-1]] if uses else 0 for uses in instance.uses]
        makers = {self.step_of[writers[0]] for d in self.readers if (writers := instance.writers[d])}
        placing = sorted(u for u in makers if self._in("forward", u))
        self._backward = {step.layer: u for u, step in enumerate(self.steps) if step.direction == "backward"}
        self._staying = frozenset([u for u in range(len(self.steps)) if self._in("forward", u)][-_STAY:])
        self._placing = [-1, *placing]
        self._turn = {u: turn for turn, u in enumerate(self._placing)}

    def rules(self) -> Rules:
        """Put the rules together."""
        points = offload_points(self.instance, self.steps, lambda _: True, unread=True)
        leaves = {u: list(blocks) for u, blocks in points.items() if u not in self._staying}
        goes = {d: u for u, blocks in leaves.items() for d in blocks}
        courses = {d: self._course(d, goes) for d in self.readers}
        kept = {d: _Course(frees=u) for d, u in goes.items() if d not in courses}
        shared = self._shared()
        lasting = {d for d, course in courses.items() if d in goes or self._lasts(d, course)}
        over = {
            gradient: d
            for gradient, d in gradients(self.instance).items()
            if gradient not in shared and d in lasting
            if self.instance.uses[d][-1] < self.instance.writers[gradient][0]
        }
        return Rules(
            layers=self.layers,
            leaves=_by_step((d, u) for d, u in [*goes.items(), *((d, c.leaves) for d, c in courses.items())]),
            frees=_by_step((d, course.frees) for d, course in (courses | kept).items()),
            returns=_by_step((d, course.returns) for d, course in courses.items()),
            dead=frozenset(d for d, course in courses.items() if course.frees is not None and d not in goes),
            over=over,
            buffers=dict.fromkeys(self.readers, "data") | shared | self._kept(kept),
            forks=frozenset(d for d, readers in self.readers.items() if len(readers) > 1),
            waits=frozenset(
                self.last[d]
                for d, writers in enumerate(self.instance.writers)
                if writers and self._in("backward", self.step_of[writers[0]])
                if d not in over and d not in shared
            ),
        )

    def _in(self, direction: str, step: int) -> bool:
        return self.steps[step].direction == direction

    def _course(self, block: int, goes: Mapping[int, int]) -> _Course:
        """Decide the course of data."""
        info, reader, last = self.instance.blocks[block], self.readers[block][-1], self.last[block]
        if block in goes:
            following = next(u for k in self.instance.uses[block] if (u := self.step_of[k]) > goes[block])
            return _Course(frees=max(goes[block], min(self._delayed(block), following - 2)))
        if not self._in("forward", last) or ends_on_device(info):
            return _Course()
        back = self._back(reader)
        if back is not None and reader in self._staying:
            return _Course(frees=back - 1)
        frees = max(last, self._delayed(block))
        if back is None or info.offload_ns is None or info.prefetch_ns is None:
            return _Course(frees=frees)
        return _Course(leaves=reader, frees=frees, returns=back)

    def _lasts(self, block: int, course: _Course) -> bool:
        """Return whether data that does not leave, or leaves for nothing, is there in the backward pass."""
        if course.frees is None or course.returns is not None:
            return True
        back = self._back(self.readers[block][-1])
        return back is not None and course.frees == back - 1

    def _back(self, step: int) -> int | None:
        """Return the backward step of a layer."""
        return self._backward.get(self.steps[step].layer)

    def _delayed(self, block: int) -> int:
        """Return the step that is two layers with an output later than the one that made the data."""
        writers = self.instance.writers[block]
        place = self._turn[self.step_of[writers[0]]] if writers else 0
        return self._placing[min(place + _DELAY, len(self._placing) - 1)]

    def _shared(self) -> dict[int, str]:
        """Name the buffers of the gradients that a fork's readers make, by the turn of the reader."""
        splits = [
            [d for d in layer.needs if self._in("backward", self.step_of[self.instance.writers[d][0]])]
            for layer in self.layers
            if layer.unit.kind == SPLIT and layer.unit.direction == "backward"
        ]
        fewest = min(map(len, splits), default=0)
        return {
            d: f"{SPLIT} {turn}" if turn < fewest else f"{SPLIT} {turn} of {d}"
            for gradients in splits
            for turn, d in enumerate(gradients)
        }

    def _kept(self, blocks: Iterable[int]) -> dict[int, str]:
        """Name the buffers of what layers keep: one for each kind of layer, and for each block of a layer."""
        names: dict[int, str] = {}
        for layer in self.layers:
            if layer.unit.direction == "backward":
                own = [d for d in layer.needs if d in blocks and d not in names]
                names |= {d: f"{layer.unit.kind} {turn}" for turn, d in enumerate(own)}
        return names


def _by_step(pairs: Iterable[tuple[int, int | None]]) -> dict[int, list[int]]:
    """Collect blocks by step."""
    found: dict[int, list[int]] = defaultdict(list)
    for block, step in pairs:
        if step is not None:
            found[step].append(block)
    return dict(found)
