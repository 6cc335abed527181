"""The longest path of runs and copies, worked out by hand and met by exhaustive search."""

from __future__ import annotations

import msgspec
import pytest

from pebbler.instances.instance import Algorithm, Block, Instance, Link, Task
from pebbler.instances.workload import Workload
from pebbler.solver.bounds import best_bound
from pebbler.solver.exhaustive.brute_force import brute_force
from pebbler.validate.bounds.arguments import compute_ns
from pebbler.validate.bounds.critical_path import critical_path_ns

W, GRADIENT, OTHER = range(3)
DEVICE = Algorithm(name="kernel", duration_ns=5, workspace_bytes=0)
HOST = Algorithm(name="cpu", duration_ns=50, workspace_bytes=0, on="host")

BACK = Task(name="back", inputs=(W,), outputs=(GRADIENT,), algorithms=(DEVICE,))
STEP = Task(name="step", inputs=(GRADIENT,), outputs=(), updates=(W,), algorithms=(HOST,))
USE = Task(name="use", inputs=(W,), outputs=(), algorithms=(DEVICE,))
BEGIN = Task(name="begin", inputs=(OTHER,), outputs=(), algorithms=(DEVICE,))


def step(*tasks: Task, other: str = "device", **w: object) -> Instance:
    """A gradient of W is made on the device, and a step of the optimizer on the host updates W.

    W goes out in 20 ns and comes back in 30 ns, the gradient goes out in 10 ns. All fits.
    """
    carried = Block(name="W", bytes=8, offload_ns=20, prefetch_ns=30, initially="carried")
    begun = Block(name="other", bytes=8, offload_ns=2, prefetch_ns=3)
    return Instance(
        name="step",
        engines="duplex",
        budget_bytes=2**20,
        resident_bytes=0,
        blocks=(
            msgspec.structs.replace(carried, **w),
            Block(name="dW", bytes=8, offload_ns=10, prefetch_ns=15),
            msgspec.structs.replace(begun, initially=other),
        ),
        tasks=tasks or (BACK, STEP),
    )


def lasting(task: Task, nanoseconds: int) -> Task:
    algorithm = msgspec.structs.replace(task.algorithms[0], duration_ns=nanoseconds)
    return msgspec.structs.replace(task, algorithms=(algorithm,))


def met(instance: Instance) -> int:
    """The bound, which some schedule meets."""
    schedule = brute_force(instance, "divisible")
    assert schedule is not None
    bound = critical_path_ns(instance)
    assert schedule.makespan_ns == bound
    return bound


def test_what_the_host_updates_comes_back_once_a_round() -> None:
    """At its end or at its start: the gradient has gone out, the host has computed, and W is wanted."""
    instance = step()
    assert met(instance) == 5 + 10 + 50 + 30
    assert compute_ns(instance) == 50
    found = best_bound(instance)
    assert (found.lower_bound_ns, found.bound_by, found.certified) == (95, "critical-path", True)
    assert best_bound(instance, ["critical-path"]).lower_bound_ns == 50


@pytest.mark.parametrize(("before", "bound"), [(12, 30 + 5 + 10 + 50), (100, 100 + 5 + 10 + 50)])
def test_the_load_at_the_start_may_be_beside_what_runs_before_the_first_use(before: int, bound: int) -> None:
    """At the end, W comes back beside nothing."""
    assert met(step(lasting(BEGIN, before), BACK, STEP)) == bound


def test_the_load_at_the_end_may_be_beside_what_runs_after_the_step() -> None:
    """Then the shorter path is that of W on the device at both ends."""
    assert met(step(BACK, STEP, lasting(BEGIN, 40))) == 5 + 10 + 50 + 30
    assert met(step(BACK, STEP, lasting(BEGIN, 200))) == 5 + 200


def test_what_no_task_on_the_device_uses_stays_on_the_host() -> None:
    alone = msgspec.structs.replace(BEGIN, outputs=(GRADIENT,))
    assert met(step(alone, STEP)) == 5 + 10 + 50


def test_a_use_on_the_device_waits_for_the_host_and_the_copy() -> None:
    assert met(step(BACK, STEP, USE)) == 5 + 10 + 50 + 30 + 5
    assert met(step(BACK, STEP, USE, initially="device")) == 5 + 10 + 50 + 30 + 5


def test_a_use_of_what_the_host_does_not_write_waits_for_nothing() -> None:
    assert met(step(BACK, STEP, BEGIN, initially="device")) == 5 + 10 + 50


@pytest.mark.parametrize(("place", "bound"), [("anywhere", 65), ("host", 65), ("device", 95)])
def test_what_must_end_on_the_other_side_is_copied_at_the_end(place: str, bound: int) -> None:
    assert met(step(BACK, STEP, initially="device", finally_=place)) == bound


@pytest.mark.parametrize(("place", "bound"), [("anywhere", 35), ("host", 55), ("device", 35)])
def test_what_begins_on_the_host_is_loaded_and_what_ends_there_goes_out(place: str, bound: int) -> None:
    update = Task(name="update", inputs=(), outputs=(), updates=(W,), algorithms=(DEVICE,))
    assert met(step(update, initially="host", finally_=place)) == bound


def test_runs_on_the_host_follow_each_other_in_the_order_of_the_tasks() -> None:
    """The second could begin at once, but for the first."""
    second = Task(name="second", inputs=(), outputs=(), updates=(OTHER,), algorithms=(HOST,))
    assert met(step(BACK, STEP, lasting(second, 7), other="host", initially="device")) == 5 + 10 + 50 + 7
    assert met(step(lasting(second, 7), BACK, STEP, other="host", initially="device")) == 5 + 10 + 50


def test_a_task_that_may_run_on_either_side_is_on_no_path() -> None:
    """A schedule has it on the device, where nothing is copied, and W is kept."""
    either = msgspec.structs.replace(STEP, algorithms=(HOST, msgspec.structs.replace(DEVICE, duration_ns=9)))
    instance = step(BACK, either)
    assert critical_path_ns(instance) == 5
    schedule = brute_force(instance, "divisible")
    assert schedule is not None
    assert schedule.makespan_ns == 5 + 9


def test_tasks_may_run_again() -> None:
    assert met(step(msgspec.structs.replace(BACK, recomputable=True), STEP)) == 5 + 10 + 50 + 30


def test_a_copy_takes_no_less_than_with_the_link_to_itself() -> None:
    """The link passes a byte in 4 ns, and so eight in 32 ns."""
    link = Link(both_bytes_per_second=10**9 // 4)
    assert met(msgspec.structs.replace(step(), link=link)) == 5 + 32 + 50 + 32


def test_a_copy_that_is_impossible_counts_nothing() -> None:
    """There is no schedule, of which any bound holds."""
    instance = step(prefetch_ns=None)
    assert critical_path_ns(instance) == 5 + 10 + 50
    assert brute_force(step(BACK, STEP, USE, prefetch_ns=None), "divisible") is None


def test_without_copies_at_the_ends_it_is_the_compute_time() -> None:
    instance = Workload("lenet", 16, "k40").instance("1.05xMmin")
    assert critical_path_ns(instance) == compute_ns(instance)
