"""The profiler of training steps: every operator of a step, and copies, measured on this machine.

Operators are measured as they will run: in the step's order, on its data, each between two others, by the
executor and without a budget. An operator's time is what it adds to its stream, from the end of the one
before to its own end; the median of several steps counts. Its workspace is the scratch that was measured when
the step was recorded. A step that a GPU has too little memory for without a budget has the times of its
recording.
"""

from __future__ import annotations

import logging
import statistics
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import msgspec
import torch

from ....instances.errors import PebblerError
from ....instances.importers.torch_step.devices import device_of
from ....instances.importers.torch_step.instance import step_instance
from ....instances.importers.torch_step.steps import MakeTrainingStep, record_made
from ....instances.profile import Profile, TaskTimes, TrainingStep
from ..device import DeviceError
from ..profiling.copies import Copies
from ..profiling.host_costs import launch_times, mapping_times
from ..profiling.profiler import MOST_COPIES, machine_of, middle_half
from ..unlimited import in_order, unlimited
from .backend import open_backend
from .planned import PlannedStep
from .step import StepExecutor

_log = logging.getLogger(__name__)


def profile_step(
    name: str,
    make_step: MakeTrainingStep,
    batches: Sequence[int],
    *,
    clip: float | None = None,
    repeat: int = 5,
    seed: int = 0,
    keep: Callable[[Profile], None] | None = None,
) -> Profile:
    """Measure the training step that a function makes, where its module is.

    Every tensor of the step has a place of its own, so that this takes more memory than eager torch does.
    Where a GPU has too little for that, operators have the times at which they were recorded, each by itself,
    and ``recorded`` in the ``meta`` lists the batch size.

    Parameters
    ----------
    name
        What the profile calls the step, and the instances that are made with it.
    make_step, clip
        As `record_made` takes them.
    batches
        Batch sizes, each of which is measured.
    repeat
        Number of steps whose median counts, after a first one that does not count. Copies, launches and
        mappings are measured as often, but at most 20 times.
    seed
        Of parameters, inputs and whatever the step draws.
    keep
        Function that is given the profile so far, as soon as a batch size has been measured once, and after
        each further step. Such a profile can be used; ``complete`` in its ``meta`` is False, but in the last.

    Raises
    ------
    PebblerError
        When the step cannot be recorded, or the host has too little memory.
    """
    if repeat < 1 or not batches:
        raise PebblerError("there is nothing to measure; give a batch size, and 1 step or more")
    measured = [_Size(name, make_step, batch, clip, seed) for batch in sorted(set(batches))]
    largest = max(size.largest for size in measured)
    whole = _machine(name, clip, measured[0].record.device, largest, min(repeat, MOST_COPIES))

    def so_far(*, complete: bool) -> Profile:
        found = _with_tasks(whole, measured, complete=complete)
        if keep is not None:
            keep(found)
        return found

    for size in measured:
        for number in size.measure(repeat):
            _log.info("%s: step %d of %d with batch %d", name, number, repeat, size.batch)
            so_far(complete=False)
    return so_far(complete=True)


class _Size:
    """The measurements of a step with a batch size."""

    def __init__(
        self, name: str, make_step: MakeTrainingStep, batch: int, clip: float | None, seed: int
    ) -> None:
        self.batch = batch
        self.times: list[list[int]] = []
        self.is_recorded = False
        self._seed = seed
        self._made: list[tuple[Any, ...]] = []

        def kept(size: int) -> tuple[Any, ...]:
            torch.manual_seed(seed)
            self._made.append(make_step(size))
            return self._made[-1]

        _log.info("%s: recording a step with batch %d", name, batch)
        self.record = record_made(kept, batch, clip=clip)
        instance = step_instance(
            self.record, name=name, link="1GB/s", lasting="resident", batch=batch
        ).instance
        self.largest = max(block.bytes for block in instance.blocks)
        self._planned = PlannedStep(self.record, *unlimited(instance, in_order(instance)))

    def measure(self, repeat: int) -> Iterator[int]:
        """Take steps, and yield how often each operator has been measured."""
        module, _, inputs, *optimizer = self._made.pop()
        torch.manual_seed(self._seed)
        try:
            executor = StepExecutor([self._planned], module, optimizer[0] if optimizer else None)
        except DeviceError as error:
            if device_of(self.record.device).scratch_in_pool:
                raise
            _log.info(
                "%s: operators keep the times of the recording, as %s", self._planned.instance.name, error
            )
            self.is_recorded = True
            self.times.append([task.algorithms[0].duration_ns for task in self._planned.instance.tasks])
            yield 1
            return
        with executor as step:
            step(*inputs)  # once for what is loaded and chosen at first
            for number in range(1, repeat + 1):
                step(*inputs)
                ends = [0, *(timed.end_ns for timed in step.timed)]
                self.times.append([end - begin for begin, end in pairwise(ends)])
                yield number

    def tasks(self) -> Iterator[TaskTimes]:
        """Yield the times of every task, if they were measured."""
        for task, times in zip(self._planned.instance.tasks, zip(*self.times, strict=True), strict=False):
            (algorithm,) = task.algorithms
            found = msgspec.structs.replace(algorithm, duration_ns=max(1, statistics.median_low(times)))
            yield TaskTimes(sub_batch=self.batch, name=task.name, algorithms=(found,))

    def spread(self) -> Iterator[float]:
        """Yield how far the times of each operator spread."""
        yield from map(middle_half, zip(*self.times, strict=True))


def _machine(name: str, clip: float | None, place: str, largest: int, repeat: int) -> Profile:
    """Return a profile without tasks, with the measurements of the machine."""
    device = open_backend(device_of(place))
    try:
        _log.info("%s: copies of up to %d bytes", name, largest)
        return Profile(
            network=name,
            graph="executable",
            machine=machine_of(device),
            copies=tuple(Copies(device, largest).times(repeat)),
            tasks=(),
            mapping=mapping_times(device, repeat),
            launches=launch_times(device, repeat),
            training_step=TrainingStep(clip=clip),
            meta={"backend": device.name, "threads": torch.get_num_threads()},
        )
    finally:
        device.close()


def _with_tasks(whole: Profile, measured: Sequence[_Size], *, complete: bool) -> Profile:
    """Return the profile with the measurements of operators so far."""
    done = [size for size in measured if size.times]
    spread = [width for size in done for width in size.spread()]
    return msgspec.structs.replace(
        whole,
        tasks=tuple(task for size in done for task in size.tasks()),
        meta=whole.meta
        | {
            "complete": complete,
            "executions": min((len(size.times) for size in done), default=0),
            "not_measured": [],
            "recorded": [size.batch for size in done if size.is_recorded],
            "not_deterministic": [],
            "median_spread": round(statistics.median(spread), 4) if spread else None,
        },
    )
