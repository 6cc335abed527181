"""Conversion of the steps that a simulation has logged to a program, and to the lifetimes of its data."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...instances.instance import Instance
from ...instances.units import ceil_to
from ...validate.host_memory import ALIGNMENT_BYTES
from ...validate.schedule import MemoryModel
from ..program.builder import ProgramBuilder
from ..program.placement import Piece
from .kernel import (
    ALGORITHMS,
    BYTES,
    DROP,
    KEEP,
    LASTS,
    MOVE,
    OFFLOAD,
    PLACE,
    PREFETCH,
    RELEASE,
    RUN,
    WORKSPACE,
    Problem,
)

Integers = NDArray[np.int64]
"""Array of int64."""


def program_of(instance: Instance, problem: Problem, memory: MemoryModel, log: Integers) -> ProgramBuilder:
    """Build the program of the steps that the kernel has logged."""
    contiguous = memory == "contiguous"
    steps = [
        (
            kind,
            what,
            how,
            int(problem.private[what]) if kind in (PLACE, PREFETCH) and problem.private[what] >= 0 else at,
        )
        for kind, what, how, at in log.tolist()
    ]
    homes = problem.homes.tolist()
    behind = sum(
        ceil_to(block.bytes, ALIGNMENT_BYTES)
        for block, at in zip(instance.blocks, homes, strict=True)
        if at >= 0
    )
    count = 0
    copies: dict[int, int | None] = {}
    while count < len(steps) and steps[count][0] == KEEP:
        what, at = steps[count][1], steps[count][3]
        copies[what] = behind + at if homes[what] < 0 else homes[what]
        count += 1
    start: dict[int, int | None] = {}
    while count < len(steps) and steps[count][0] == PLACE:
        start[steps[count][1]] = steps[count][3] if contiguous else None
        count += 1
    builder = ProgramBuilder(instance, memory=memory, start=start, copies=copies, homing=True)
    while count < len(steps):
        kind, what, how, at = steps[count]
        count += 1
        if kind == RUN:
            places: dict[int, int] = {}
            while count < len(steps) and steps[count][0] == PLACE:
                places[steps[count][1]] = steps[count][3]
                count += 1
            if contiguous:
                builder.run(what, how, at=places, workspace_at=None if at < 0 else at)
            else:
                builder.run(what, how)
        elif kind == OFFLOAD:
            place = homes[what] if homes[what] >= 0 else behind + at
            builder.offload(what, host_at=None if at < 0 else place)
        elif kind == PREFETCH:
            builder.prefetch(what, at=at if contiguous else None)
        elif kind == MOVE:
            builder.move(what, at=at)
        elif kind == RELEASE:
            builder.release(what)
        elif kind == DROP:
            builder.drop_copy(what)
    return builder


class Lifetime(NamedTuple):
    """A piece of the pool that a program holds for a while: a stay of a block, or a workspace.

    All stays of a block that has a home are one piece.

    Attributes
    ----------
    side
        The position in `Decisions.side` of the rule that decides its place.
    piece
        Its bytes, as the search counts them, and the times in nanoseconds at which it is in use.
    """

    side: int
    piece: Piece


def lifetimes_of(instance: Instance, problem: Problem, log: Integers) -> list[Lifetime]:
    """Return the pieces of the pool that the logged steps use, with their times, but without addresses."""
    schedule = program_of(instance, problem, "divisible", log).finish("lifetimes")
    operations = {operation.id: operation for operation in schedule.operations}
    blocks, gaps = len(problem.blocks), len(problem.gaps)
    prefetches = [operation.id for operation in schedule.operations if operation.kind == "prefetch"]
    gap_of = dict(zip(prefetches, log[log[:, 0] == PREFETCH, 2].tolist(), strict=True))
    stays: dict[int, list[tuple[int, int]]] = {}
    sizes: dict[int, int] = {}
    for residence in schedule.residences:
        if residence.workspace_of is not None:
            run = operations[residence.workspace_of]
            assert run.task is not None
            row = problem.tasks[run.task, ALGORITHMS] + run.algorithm
            side, size = blocks + gaps + run.task, int(problem.algorithms[row, WORKSPACE])
        else:
            assert residence.block is not None
            came = residence.acquired_by
            has_home = bool(problem.blocks[residence.block, LASTS])
            side = residence.block if has_home or came not in gap_of else blocks + gap_of[came]
            size = int(problem.blocks[residence.block, BYTES])
        begin = 0 if residence.acquired_by is None else operations[residence.acquired_by].start_ns
        ends = [operations[i].end_ns for i in residence.released_after]
        end = max(ends, default=schedule.makespan_ns)
        if size and end > begin:
            sizes[side] = size
            stays.setdefault(side, []).append((begin, end))
    return [Lifetime(side, _piece(sizes[side], some)) for side, some in stays.items()]


def _piece(size: int, stays: Sequence[tuple[int, int]]) -> Piece:
    """Return a piece for stays in rising order."""
    ends = pairwise([edge for stay in stays for edge in stay])
    gaps = tuple((begin, end) for i, (begin, end) in enumerate(ends) if i % 2 and begin < end)
    return Piece(size, stays[0][0], stays[-1][1], gaps)
