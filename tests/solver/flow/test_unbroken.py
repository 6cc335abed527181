"""Copies that are not interrupted: FLOW says more with them, and never more than the optimum."""

from __future__ import annotations

import pytest

from pebbler.instances.instance import Algorithm, Block, Instance, Task
from pebbler.instances.suites.tiny import tiny_instance
from pebbler.solver.exhaustive.brute_force import brute_force
from pebbler.solver.flow.model import flow_bound, flow_model

from ...samples import sampled


def lower(instance: Instance, checkpoints: range, *, unbroken: bool) -> int:
    bound = flow_bound(instance, checkpoints, integrality="all", unbroken=unbroken)
    assert bound is not None
    return bound.lower_bound_ns


@pytest.mark.parametrize("seeds", sampled(range(5), range(0, 240, 60)))
def test_the_bound_rises_and_is_never_above_the_optimum(seeds: range) -> None:
    risen = tight = before = solved = 0
    for seed in seeds:
        instance = tiny_instance(seed)
        schedule = brute_force(instance, "divisible")
        if schedule is None or any(task.recomputable for task in instance.tasks):
            continue
        every = range(len(instance.tasks))
        for checkpoints in (every, every[::2], every[1::3]):
            plain = lower(instance, checkpoints, unbroken=False)
            unbroken = lower(instance, checkpoints, unbroken=True)
            assert plain <= unbroken <= schedule.makespan_ns, seed
            risen += plain < unbroken
            if checkpoints == every:
                solved += 1
                before += plain == schedule.makespan_ns
                tight += unbroken == schedule.makespan_ns
    assert solved >= len(seeds) / 3
    assert tight >= before
    assert risen >= tight - before


def test_a_short_copy_does_not_cut_in_on_a_long_one() -> None:
    """Nothing stays beside `all`; the long block has room again a task before the short one, needed first."""
    tensors = {"long": (20, 20), "short": (4, 4), "all": (30, None), "half": (10, None)}
    blocks = tuple(
        Block(name=name, bytes=size, offload_ns=copy, prefetch_ns=copy, move_ns=None)
        for name, (size, copy) in tensors.items()
    )
    touched: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
        ((), (0,)), ((), (1,)), ((), (2,)), ((), (3,)), ((1,), ()), ((0,), ()),
    ]  # fmt: skip
    plain = Algorithm(name="plain", duration_ns=10, workspace_bytes=0)
    instance = Instance(
        name="cut-in",
        engines="duplex",
        budget_bytes=30,
        resident_bytes=0,
        alignment_bytes=1,
        blocks=blocks,
        tasks=tuple(
            Task(name=f"t{k}", inputs=inputs, outputs=outputs, algorithms=(plain,))
            for k, (inputs, outputs) in enumerate(touched)
        ),
    )
    schedule = brute_force(instance, "divisible")
    assert schedule is not None
    every = range(len(touched))
    bounds = [lower(instance, every, unbroken=unbroken) for unbroken in (False, True)]
    assert bounds == [78, 84]
    assert schedule.makespan_ns == 84


def test_only_whole_evictions_have_whole_copies() -> None:
    with pytest.raises(ValueError, match="only where evictions are whole"):
        flow_model(tiny_instance(0), [0], "none", unbroken=True)
