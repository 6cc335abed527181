"""moDNN's choice of the sub-batch: eq. 8 and eq. 3 by hand, and on networks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import cast

import pytest

from pebbler.heuristics.papers import modnn_sub_batch as sub_batch
from pebbler.instances.instance import Algorithm, Block, Instance, Task
from pebbler.instances.memory import fastest
from pebbler.instances.workload import Workload

Workspace = Callable[[int], int]


@dataclass(frozen=True)
class Chain:
    """As far as the rules ask, a workload: a chain of tasks, each of which makes a byte an image or more.

    Attributes
    ----------
    outputs
        Bytes an image of every task's output, which the next task reads.
    workspace
        From the sub-batch to bytes: of the fast algorithm of `worker`, by default the last task.
    """

    batch: int
    outputs: tuple[int, ...]
    workspace: Workspace = lambda _b: 0
    resident: int = 0
    worker: int = -1

    def instance(self, budget: int, size: int, *, check_budget: bool) -> Instance:
        assert not check_budget
        last = len(self.outputs) - 1
        plain = Algorithm(name="plain", duration_ns=9, workspace_bytes=0)
        fast = Algorithm(name="fast", duration_ns=1, workspace_bytes=self.workspace(size))
        return Instance(
            name="chain",
            engines="duplex",
            budget_bytes=budget,
            resident_bytes=self.resident,
            alignment_bytes=1,
            blocks=tuple(
                Block(name=f"{k}", bytes=amount * size, offload_ns=1, prefetch_ns=1)
                for k, amount in enumerate(self.outputs)
            ),
            tasks=tuple(
                Task(
                    name=f"{k}",
                    inputs=(k - 1,) if k else (),
                    outputs=(k,),
                    algorithms=(plain, fast) if k == self.worker % (last + 1) else (plain,),
                )
                for k in range(last + 1)
            ),
            meta={"sub_batch": size},
        )


def tpds(chain: Chain, budget: int) -> int:
    return sub_batch.tpds(cast("Workload", chain), budget)


def date(chain: Chain, budget: int) -> int:
    return sub_batch.date(cast("Workload", chain), budget)


# --- eq. 8 ------------------------------------------------------------------------------------------------

TWENTY = (1,) * 17 + (5, 2, 1)
"""15 % of 20 tasks are 3; the window with the most is 18 to 20 or 17 to 19: 1 + 5 + 2 + 1 = 9 bytes an image.

Each output is an input of the next task, and counted once: with repetition there would be 16.
"""


@pytest.mark.parametrize(
    ("budget", "chosen"), [(9 * 16, 16), (9 * 16 - 1, 8), (9 * 32, 32), (9 * 63, 32), (9 * 64, 64)]
)
def test_a_window_of_15_percent_counts_what_is_reused_once(budget: int, chosen: int) -> None:
    assert tpds(Chain(1000, TWENTY), budget) == chosen


@pytest.mark.parametrize(("budget", "chosen"), [(7 + 4 + 9 * 16, 16), (7 + 4 + 9 * 16 - 1, 8)])
def test_the_largest_workspace_of_the_window_and_what_is_resident_are_added(budget: int, chosen: int) -> None:
    """Of the windows with 9 bytes, one has the last task, and its workspace of 4."""
    assert tpds(Chain(1000, TWENTY, lambda _b: 4, resident=7), budget) == chosen


def test_a_workspace_counts_in_every_window_that_its_task_is_in() -> None:
    """Task 18 works in 8 bytes, and the window with the most ends with task 20."""
    working = Chain(1000, TWENTY, lambda _b: 8, worker=17)
    assert tpds(working, 8 + 9 * 16) == 16
    assert tpds(working, 8 + 9 * 16 - 1) == 8


def test_a_workspace_with_which_the_task_itself_does_not_fit_is_not_counted() -> None:
    """The last task has 3 bytes an image; of the whole batch and of 16 images, 500 are too much beside it."""
    assert tpds(Chain(1000, TWENTY, lambda b: 500 if b > 8 else 400), 9 * 16) == 16
    assert tpds(Chain(1000, TWENTY, lambda _b: 90), 9 * 16) == 4


@pytest.mark.parametrize(
    ("fits", "chosen"),
    [(250, 192), (192, 192), (100, 64), (64, 64), (63, 32), (48, 32), (31, 16), (3, 2), (1, 1), (0, 1)],
)
def test_rounded_down_to_a_multiple_of_64_or_the_power_of_two_below(fits: int, chosen: int) -> None:
    assert tpds(Chain(1000, TWENTY), 9 * fits) == chosen


@pytest.mark.parametrize("batch", [1, 31, 100, 250])
def test_the_whole_batch_stays_as_it_is(batch: int) -> None:
    assert tpds(Chain(batch, TWENTY), 9 * batch) == batch
    assert batch == 1 or tpds(Chain(batch, TWENTY), 9 * batch - 1) < batch


def test_where_the_sub_batch_swings_the_least_is_taken() -> None:
    """Profiled at 20 images or fewer there is no workspace, and 40 fit; at 40 it leaves room for 20 only."""
    swinging = Chain(40, TWENTY, lambda b: 180 if b > 20 else 0)
    assert tpds(swinging, 9 * 40 - 1) == 16


def window_by_hand(instance: Instance, workspaces: list[int]) -> int:
    """Eq. 8 as it is printed."""
    length = max(15 * len(instance.tasks) // 100, 1)
    windows = []
    for first in range(len(instance.tasks) - length + 1):
        tasks = range(first, first + length)
        touched = {d for k in tasks for d in instance.tasks[k].blocks}
        windows.append(sum(instance.blocks[d].bytes for d in touched) + max(workspaces[k] for k in tasks))
    return instance.resident_bytes + max(windows)


@cache
def at_every_sub_batch(workload: Workload) -> list[Instance]:
    return [workload.instance(0, b, check_budget=False) for b in range(1, workload.batch + 1)]


@pytest.mark.parametrize("network", ["lenet", "cifar10_quick", "resnet18"])
@pytest.mark.parametrize("share", [5, 15, 30, 60, 90])
def test_binary_search_finds_what_trying_all_finds(network: str, share: int) -> None:
    """At the sub-batch that is chosen the window fits, and at the next one it does not."""
    workload = Workload(network, 24, "K40")
    instances = at_every_sub_batch(workload)
    floor, whole = workload.floor(), window_by_hand(instances[-1], [0] * len(instances[-1].tasks))
    budget = floor + (whole - floor) * share // 100

    def largest(profile: Instance) -> int:
        room = budget - profile.resident_bytes
        workspaces = [
            min(
                (a.duration_ns, a.workspace_bytes)
                for a in task.algorithms
                if a.workspace_bytes <= max(room - sum(profile.blocks[d].bytes for d in task.blocks), 0)
            )[1]
            for task in profile.tasks
        ]
        fitting = [b for b, one in enumerate(instances, start=1) if window_by_hand(one, workspaces) <= budget]
        return max(fitting, default=1)

    seen = [24]
    while (b := largest(instances[seen[-1] - 1])) not in seen:
        seen.append(b)
    b = min(seen[seen.index(b) :])
    unit = max(2**i for i in range(7) if 2**i <= b)
    assert sub_batch.tpds(workload, budget) == (b if b == 24 else b // unit * unit)


def test_more_memory_never_means_a_much_smaller_sub_batch_on_fcn() -> None:
    """fc6 as a convolution has spectra larger than 3 GiB: not possible, so they do not force one image."""
    workload = Workload("fcn", 128, "K40")
    assert [sub_batch.tpds(workload, gib * 2**30) for gib in (2, 3, 4, 6, 12)] == [8, 16, 16, 32, 64]


# --- eq. 3 ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("budget", "chosen"), [(7 + 7 * 10, 10), (7 + 7 * 10 - 1, 9), (7, 1), (7 + 7 * 90, 50)]
)
def test_eq_3_divides_what_the_weights_leave_by_the_largest_task_of_an_image(
    budget: int, chosen: int
) -> None:
    """The task that reads 5 bytes and makes 2 takes most: 7."""
    assert date(Chain(50, TWENTY, resident=7), budget) == chosen


def test_eq_3_counts_the_workspace_of_the_fastest_algorithm() -> None:
    """The last task reads 2 bytes, makes 1, and works in 6."""
    assert date(Chain(50, TWENTY, lambda b: 6 * b), 9 * 20) == 20


@pytest.mark.parametrize("rule", [sub_batch.tpds, sub_batch.date])
@pytest.mark.parametrize("network", ["lenet", "alexnet"])
def test_a_rule_returns_a_sub_batch_of_the_batch(rule: Callable[[Workload, int], int], network: str) -> None:
    workload = Workload(network, 48, "K40")
    enough = 100 * workload.minimum_budget()
    assert rule(workload, enough) == 48
    assert 1 <= rule(workload, workload.floor()) <= 48
    assert len(fastest(workload.instance(0, 48, check_budget=False))) > 0
