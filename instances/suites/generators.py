"""Random instances: a shape, knobs, and a random generator give the same instance anywhere and any time.

The forward pass has a task for each node of the shape; a task for the loss follows, and the backward pass in
reverse. What a backward task reads besides the gradient depends on its layer, as in real networks: the
layer's inputs (a convolution), its output (a ReLU), both (pooling) or neither (an addition). Gradients that
meet are accumulated in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
import numpy as np

from ..instance import Algorithm, Block, Instance, Task
from ..memory import least_budget, unlimited_peak, with_budget
from ..origin import LayerTasks
from ..units import ceil_to
from .draws import Draws
from .shapes import Node, Percent, Shape

VERSION = 1
"""Version of the generators: with the same version, the same seed gives the same file."""

_KEPT = ((True, False),) * 6 + ((False, True),) * 2 + ((True, True),) + ((False, False),)
"""Pairs to draw from for a node that reads one block.

A pair says whether the node's backward task reads that block, and whether it reads the node's own block.
"""

Amount = Annotated[int, msgspec.Meta(ge=1, le=2**30)]
"""Number of bytes or nanoseconds."""

Octaves = Annotated[int, msgspec.Meta(ge=0, le=12)]
"""Number of doublings."""

_MOVES_FASTER = 12
"""Ratio of the rates of copies inside the device and to the host, as on a K40."""


class Knobs(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """Parameters of the random draws on a shape.

    Attributes
    ----------
    unit_bytes, octaves
        Skew of the sizes: a block has `unit_bytes` times a random power of two up to 2^octaves, and up to the
        next power. With 0, all blocks have the same size.
    grid_bytes
        Bytes of which sizes are multiples.
    unit_ns, time_octaves
        The same for the durations of tasks.
    transfer_percent
        Time of copying every block once in one direction, in percent of the computing time; with 0, blocks
        never leave.
    slack_percent
        Budget: 0 is the least possible, 100 is the peak without a limit.
    fast_percent
        Share of the tasks that have a faster algorithm with a workspace.
    gain_percent, workspace_percent
        By how much that algorithm is faster, and its workspace in percent of the bytes that the task touches.
    recomputable_percent
        Share of the forward tasks that may run again.
    backward
        Whether there is a backward pass.
    moves
        Whether blocks can be moved inside the device.
    host_input
        Whether the network's input is on the host at first.
    engines
        Copy engines: ``duplex`` or ``single``.
    """

    unit_bytes: Amount = 2**19
    octaves: Octaves = 5
    grid_bytes: Amount = 4
    unit_ns: Amount = 50_000
    time_octaves: Octaves = 4
    transfer_percent: Annotated[int, msgspec.Meta(ge=0, le=10_000)] = 100
    slack_percent: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 30
    fast_percent: Percent = 40
    gain_percent: Percent = 40
    workspace_percent: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 30
    recomputable_percent: Percent = 0
    backward: bool = True
    moves: bool = True
    host_input: bool = False
    engines: Literal["duplex", "single"] = "duplex"


def generate(name: str, shape: Shape, knobs: Knobs, rng: np.random.Generator) -> Instance:
    """Draw an instance.

    Parameters
    ----------
    name
        Name of the instance.
    shape
        Graph of the forward pass.
    knobs
        Sizes, times, algorithms, copies and budget.
    rng
        A generator on PCG64; only its raw stream is used.

    Raises
    ------
    PebblerError
        When the generator is not on PCG64.
    """
    draws = Draws(rng)
    nodes = shape.nodes(draws)
    drawn = _Drawn(knobs, draws)
    drawn.forward(nodes)
    if knobs.backward:
        drawn.backward(nodes)
    roomy = Instance(
        name=name,
        engines=knobs.engines,
        budget_bytes=0,
        resident_bytes=drawn.resident,
        blocks=_with_copies(drawn.blocks, drawn.tasks, knobs),
        tasks=tuple(drawn.tasks),
        meta={
            "generator": VERSION,
            "shape": msgspec.to_builtins(shape),
            "knobs": msgspec.to_builtins(knobs),
        },
        layers=_layers(drawn.tasks, len(nodes)),
    )
    least = least_budget(roomy)
    slack = max(unlimited_peak(roomy) - least, 0) * knobs.slack_percent
    return with_budget(roomy, least + ceil_to(slack, 100) // 100)


class _Drawn:
    """Blocks and tasks drawn so far; block 0 is the network's input, and node k makes block k + 1."""

    def __init__(self, knobs: Knobs, draws: Draws) -> None:
        self.knobs = knobs
        self.draws = draws
        self.blocks: list[Block] = []
        self.tasks: list[Task] = []
        self.resident = 0

    def forward(self, nodes: Sequence[Node]) -> None:
        """Draw the network's input and, for each node, its output, its weights and its task."""
        knobs = self.knobs
        self.block("X", self.size(), "host" if knobs.host_input else "device")
        for k, node in enumerate(nodes):
            size = max(ceil_to(self.size() >> node.halvings, knobs.grid_bytes), knobs.grid_bytes)
            self.block(f"Y{k}", size)
            if knobs.backward:
                weights = self.draws.below(size // knobs.grid_bytes // 4 + 1) * knobs.grid_bytes
                self.resident += 2 * weights
            recomputable = self.draws.chance(knobs.recomputable_percent)
            self.task(f"F{k}", _read(node), (k + 1,), (), recomputable)

    def backward(self, nodes: Sequence[Node]) -> None:
        """Draw the loss, which reads every output that no node reads, and the nodes' backward tasks."""
        gradients: dict[int, int] = {}
        consumed = {d for node in nodes for d in _read(node)}
        ends = tuple(d for d in range(1, len(nodes) + 1) if d not in consumed)
        for d in ends:
            gradients[d] = self.gradient(d)
        self.task("loss", ends, tuple(gradients.values()))
        for k in reversed(range(len(nodes))):
            sources = _read(nodes[k])
            reads_sources, reads_own = self.draws.choice(_KEPT) if len(sources) == 1 else (False, False)
            kept = (sources if reads_sources else ()) + ((k + 1,) if reads_own else ())
            met = tuple(gradients[d] for d in sources if d in gradients)
            new = {d: self.gradient(d) for d in sources if d and d not in gradients}
            gradients |= new
            self.task(f"B{k}", (*kept, gradients[k + 1]), tuple(new.values()), met)

    def gradient(self, d: int) -> int:
        """Add the gradient of a block."""
        return self.block(f"d{self.blocks[d].name}", self.blocks[d].bytes)

    def block(self, name: str, size: int, initially: Literal["absent", "device", "host"] = "absent") -> int:
        """Add a block; the times of its copies are set at the end."""
        self.blocks.append(
            Block(name=name, bytes=size, offload_ns=None, prefetch_ns=None, initially=initially)
        )
        return len(self.blocks) - 1

    def task(
        self,
        name: str,
        inputs: tuple[int, ...],
        outputs: tuple[int, ...],
        updates: tuple[int, ...] = (),
        recomputable: bool = False,
    ) -> None:
        """Add a task with its algorithms."""
        knobs = self.knobs
        duration = self.duration()
        algorithms = [Algorithm(name="plain", duration_ns=duration, workspace_bytes=0)]
        if self.draws.chance(knobs.fast_percent):
            touched = sum(self.blocks[d].bytes for d in (*inputs, *outputs, *updates))
            algorithms.append(
                Algorithm(
                    name="fast",
                    duration_ns=duration * (100 - knobs.gain_percent) // 100,
                    workspace_bytes=ceil_to(touched * knobs.workspace_percent // 100, knobs.grid_bytes),
                )
            )
        self.tasks.append(
            Task(
                name=name,
                inputs=inputs,
                outputs=outputs,
                updates=updates,
                algorithms=tuple(algorithms),
                recomputable=recomputable,
            )
        )

    def size(self) -> int:
        """Return the bytes of a block."""
        least = self.knobs.unit_bytes << self.draws.below(self.knobs.octaves + 1)
        more = self.draws.below(least // self.knobs.grid_bytes + 1) if self.knobs.octaves else 0
        return ceil_to(least, self.knobs.grid_bytes) + more * self.knobs.grid_bytes

    def duration(self) -> int:
        """Return the nanoseconds of a task."""
        least = self.knobs.unit_ns << self.draws.below(self.knobs.time_octaves + 1)
        return least + (self.draws.below(least) if self.knobs.time_octaves else 0)


def _read(node: Node) -> tuple[int, ...]:
    """Return the blocks that a node reads."""
    return tuple(source + 1 for source in node.reads) or (0,)


def _layers(tasks: Sequence[Task], count: int) -> tuple[LayerTasks, ...]:
    """Return the nodes and the loss as layers with their tasks; one with two algorithms is a convolution."""
    layers = [
        LayerTasks(
            name=f"L{k}",
            kind="conv" if len(tasks[k].algorithms) > 1 else "other",
            forward=(k,),
            backward=(2 * count - k,) if len(tasks) > count else (),
        )
        for k in range(count)
    ]
    if len(tasks) > count:
        layers.append(LayerTasks(name="loss", kind="softmax", forward=(count,), backward=()))
    return tuple(layers)


def _with_copies(blocks: Sequence[Block], tasks: Sequence[Task], knobs: Knobs) -> tuple[Block, ...]:
    """Give copies times in proportion to their bytes, with their share of the computing time in total."""
    if not knobs.transfer_percent:
        return tuple(blocks)
    whole = 100 * sum(block.bytes for block in blocks)
    time = knobs.transfer_percent * sum(
        min(algorithm.duration_ns for algorithm in task.algorithms) for task in tasks
    )
    copies = [-(-block.bytes * time // whole) for block in blocks]
    return tuple(
        msgspec.structs.replace(
            block,
            offload_ns=copy,
            prefetch_ns=copy,
            move_ns=-(-copy // _MOVES_FASTER) if knobs.moves else None,
        )
        for block, copy in zip(blocks, copies, strict=True)
    )
