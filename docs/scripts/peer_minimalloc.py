#!/usr/bin/env python3
"""MiniMalloc's own program (Moffitt, ASPLOS 2023), as a program that pebbler calls: `peers` says how.

The environment variable MINIMALLOC names the executable of google/minimalloc. It finds addresses for buffers,
and neither moves blocks nor chooses algorithms. A rule chooses: at first, each task has the fastest algorithm
that there are bytes for. Where MiniMalloc finds no addresses for that, each task begins with the least
workspace, and gets a faster algorithm if there are addresses for all then, in the order of the time that a
byte saves. An instance where some block has to be copied gets no schedule.
"""

from __future__ import annotations

import csv
import os
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pebbler.heuristics.methods import Limits
from pebbler.instances.instance import Instance
from pebbler.validate.schedule import MemoryModel, Operation, Residence, Schedule, unit_bytes
from peers import program

FIRST = 0.25
"""Share of the time for the fastest algorithms, all at once."""
EACH = 1.0
"""Seconds for one faster algorithm."""


@dataclass(frozen=True, slots=True)
class Stay:
    """What lies in memory from the start of one task to that of another: a block, or a workspace (None)."""

    block: int | None
    begin: int
    end: int
    bytes: int


def blocks_of(instance: Instance, memory: MemoryModel) -> list[Stay] | None:
    """Return the stays of blocks that never leave; None if some has to be copied, or for what is not known.

    That is several GPUs, work or memory of the host, what rounds carry, and pages.
    """
    beyond = instance.gpus > 1 or instance.has_host_work or instance.has_host_budget or instance.carried
    if beyond or memory != "contiguous":
        return None
    stays, tasks = [], instance.tasks
    for d, (block, uses) in enumerate(zip(instance.blocks, instance.uses, strict=True)):
        kept, here = block.finally_ == "device", block.initially == "device"
        if not (uses or kept):
            continue
        if block.finally_ == "host" or not (here or (uses and d in tasks[uses[0]].outputs)):
            return None
        stays.append(Stay(d, 0 if here else uses[0], len(tasks) if kept else uses[-1] + 1, block.bytes))
    return stays


def ways_of(instance: Instance, blocks: Sequence[Stay], unit: int) -> list[list[int]]:
    """Return per task the algorithms that there are bytes for beside the blocks, the fastest first."""
    free = [instance.pool_bytes // unit] * len(instance.tasks)
    for stay in blocks:
        for k in range(stay.begin, stay.end):
            free[k] -= -(-stay.bytes // unit)
    ways = []
    for task, units in zip(instance.tasks, free, strict=True):
        said = (task.inputs, task.outputs)  # some algorithm reads and makes what the task says
        alike = [a for a in range(len(task.algorithms)) if (task.reads(a), task.makes(a)) == said]
        fits = [a for a in alike if -(-task.algorithms[a].workspace_bytes // unit) <= units]
        ways.append(sorted(fits, key=lambda a: (task.algorithms[a].duration_ns, a)))
    return ways


class MiniMalloc:
    """Its program, for one instance: `addresses` for the blocks and the workspaces of some algorithms."""

    def __init__(self, instance: Instance, blocks: Sequence[Stay], unit: int, folder: Path) -> None:
        self.instance, self.blocks, self.unit, self.folder = instance, blocks, unit, folder

    def stays(self, algorithms: Sequence[int]) -> list[Stay]:
        """Return all that lies in memory."""
        chosen = zip(self.instance.tasks, algorithms, strict=True)
        sizes = [task.algorithms[a].workspace_bytes for task, a in chosen]
        return [*self.blocks, *(Stay(None, k, k + 1, size) for k, size in enumerate(sizes) if size)]

    def addresses(self, algorithms: Sequence[int], seconds: float) -> list[int] | None:
        """Return the offset of each stay in bytes, if there is a packing and it is found in time."""
        given, found = self.folder / "given.csv", self.folder / "found.csv"
        with given.open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(("id", "lower", "upper", "size"))
            for i, stay in enumerate(self.stays(algorithms)):
                writer.writerow((i, stay.begin, stay.end, -(-stay.bytes // self.unit)))
        capacity = self.instance.pool_bytes // self.unit
        call = [os.environ["MINIMALLOC"], f"--capacity={capacity}", f"--timeout={seconds:.3f}s"]
        done = subprocess.run(
            [*call, f"--input={given}", f"--output={found}"], capture_output=True, text=True, check=False
        )
        if done.returncode:
            return None
        with found.open(newline="") as file:
            places = {int(row["id"]): int(row["offset"]) for row in csv.DictReader(file)}
        return [places[i] * self.unit for i in range(len(places))]

    def choose(self, ways: Sequence[Sequence[int]], seconds: float) -> tuple[list[int], list[int]] | None:
        """Return algorithms and addresses for them, within the time: by the rule above."""
        ends, tasks = time.monotonic() + seconds, self.instance.tasks
        algorithms = [fits[0] for fits in ways]
        if (offsets := self.addresses(algorithms, FIRST * seconds)) is not None:
            return algorithms, offsets
        steps = []  # of less time
        for k, (task, fits) in enumerate(zip(tasks, ways, strict=True)):
            least = task.algorithms[min(fits, key=lambda a: (task.algorithms[a].workspace_bytes, a))]
            algorithms[k] = task.algorithms.index(least)
            for a in fits:
                saved = least.duration_ns - task.algorithms[a].duration_ns
                more = max(task.algorithms[a].workspace_bytes - least.workspace_bytes, 1)
                if saved > 0:
                    steps.append((saved / more, k, a))
        if (offsets := self.addresses(algorithms, max(ends - time.monotonic(), 0.01))) is None:
            return None
        for _, k, a in sorted(steps, reverse=True):
            left, before = ends - time.monotonic(), algorithms[k]
            if left <= 0:
                break
            if tasks[k].algorithms[a].duration_ns >= tasks[k].algorithms[before].duration_ns:
                continue
            algorithms[k] = a
            if (better := self.addresses(algorithms, min(left, EACH))) is None:
                algorithms[k] = before
            else:
                offsets = better
        return algorithms, offsets


def find(instance: Instance, limits: Limits) -> Schedule | None:
    """Return the schedule: all tasks one after the other, and no copies."""
    assert limits.time_limit is not None
    blocks = blocks_of(instance, limits.memory)
    if blocks is None:
        return None
    unit = unit_bytes(instance, limits.memory)
    ways = ways_of(instance, blocks, unit)
    if not all(ways):
        return None
    with tempfile.TemporaryDirectory() as folder:
        minimalloc = MiniMalloc(instance, blocks, unit, Path(folder))
        if (chosen := minimalloc.choose(ways, limits.time_limit)) is None:
            return None
        algorithms, offsets = chosen
        return scheduled(instance, algorithms, list(zip(minimalloc.stays(algorithms), offsets, strict=True)))


def scheduled(instance: Instance, algorithms: Sequence[int], placed: Sequence[tuple[Stay, int]]) -> Schedule:
    """Return the schedule of these algorithms and places: operation k runs task k."""
    operations, now = [], 0
    for k, (task, a) in enumerate(zip(instance.tasks, algorithms, strict=True)):
        ends = now + task.algorithms[a].duration_ns
        operations.append(
            Operation(id=k, stream="compute", kind="run", task=k, algorithm=a, start_ns=now, end_ns=ends)
        )
        now = ends
    residences = []
    for stay, offset in placed:
        there = stay.block is not None and instance.blocks[stay.block].initially == "device"
        kept = stay.block is not None and instance.blocks[stay.block].finally_ == "device"
        residences.append(
            Residence(
                block=stay.block,
                workspace_of=stay.begin if stay.block is None else None,
                offset=offset,
                bytes=stay.bytes,
                acquired_by=None if there else stay.begin,
                released_after=() if kept else (stay.end - 1,),
            )
        )
    return Schedule(
        format="pebbler/schedule/1",
        instance=instance.name,
        method="minimalloc",
        memory_model="contiguous",
        operations=tuple(operations),
        residences=tuple(residences),
        makespan_ns=now,
        peak_bytes=instance.resident_bytes + max((offset + stay.bytes for stay, offset in placed), default=0),
    )


if __name__ == "__main__":
    program(find)
