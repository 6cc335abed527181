"""Optimizers on the host by rule: when updates begin, where they are, and how weights come back."""

from __future__ import annotations

import pytest

from pebbler import solve
from pebbler.heuristics.methods import Limits, Refusal, find_method
from pebbler.instances.instance import Instance
from pebbler.instances.origin import Optimizer
from pebbler.instances.workload import Side, Workload
from pebbler.validate.schedule import Operation, Schedule

from ...samples import ON_HOST, crossed
from .steps import MIB, Memory, copies, runs

BUDGET = 600 * MIB


def steady(side: Side = "host", *, optimizer: Optimizer = "adamw", rate: str = "20GB/s") -> Instance:
    """Two layers of GPT-2 with room for all but what the optimizer keeps, and a slow host."""
    workload = Workload(
        "gpt2:layers=2,vocabulary=1024",
        4,
        "a100",
        steady=True,
        optimizer=optimizer,
        optimizer_on=side,
        host_bandwidth=rate,
        precision="bf16",
    )
    return workload.instance(BUDGET)


def scheduled(name: str, instance: Instance, memory: Memory = "contiguous") -> Schedule:
    found = solve(instance, name, memory=memory).schedule  # which checks it
    assert found is not None
    return found


def on_host(schedule: Schedule) -> list[Operation]:
    return sorted((o for o in schedule.operations if o.stream == "host"), key=lambda o: o.start_ns)


def named(instance: Instance, operation: Operation) -> str:
    """Name of the layer whose update an operation is, or whose weights or gradient it copies."""
    name = (
        instance.blocks[operation.block].name
        if operation.task is None and operation.block is not None
        else instance.tasks[operation.task or 0].name
    )
    return name.partition("(")[2].rstrip(")")


@pytest.mark.parametrize("memory", ["contiguous", "paged"])
def test_zero_offload_updates_all_when_the_last_gradient_is_there(memory: Memory) -> None:
    """The host is slower than the link, so that all copies of weights but the last hide behind updates."""
    instance = steady()
    schedule = scheduled("zero-offload", instance, memory)
    gradients, weights = copies(schedule, "offload"), copies(schedule, "prefetch")
    updates = on_host(schedule)
    assert {instance.blocks[o.block or 0].name[:3] for o in gradients} == {"dW("}
    assert {instance.blocks[o.block or 0].name[:2] for o in weights} == {"W("}
    assert len(gradients) == len(weights) == len(updates) == sum(t.may_run_on_host for t in instance.tasks)
    assert min(o.start_ns for o in updates) == max(o.end_ns for o in gradients)
    taken = sum(o.end_ns - o.start_ns for o in updates)
    assert schedule.makespan_ns == updates[0].start_ns + taken + weights[-1].end_ns - weights[-1].start_ns
    ended = {named(instance, o): o.end_ns for o in updates}
    assert all(o.start_ns >= ended[named(instance, o)] for o in weights)


def test_gradients_leave_while_the_backward_pass_goes_on() -> None:
    instance = steady()
    schedule = scheduled("zero-offload", instance)
    computed = max(o.end_ns for o in runs(schedule) if o.stream == "compute")
    gradients = copies(schedule, "offload")
    assert gradients[0].end_ns < 0.6 * computed
    early = [instance.blocks[o.block or 0].bytes for o in gradients if o.end_ns < computed]
    assert sum(early) > 0.5 * sum(instance.blocks[o.block or 0].bytes for o in gradients)


@pytest.mark.parametrize(("name", "memory"), crossed(ON_HOST, ("contiguous", "paged"), of=2))
def test_weights_are_where_they_were_and_states_never_come(name: str, memory: Memory) -> None:
    instance = steady("choose")
    schedule = scheduled(name, instance, memory)
    hosted = {named(instance, o) for o in on_host(schedule)}
    for d, block in enumerate(instance.blocks):
        stays = [r for r in schedule.residences if r.block == d]
        layer = block.name.partition("(")[2].rstrip(")")
        if block.name.startswith("W("):
            assert len({(r.offset, r.extents) for r in stays}) == 1
            assert len(stays) == (2 if layer in hosted else 1)
        elif block.name.startswith("dW("):
            assert all(r.released_after for r in stays)
        elif block.name[0] in "pmv":
            assert bool(stays) == (layer not in hosted)
    where = {instance.blocks[state.block].name: state for state in schedule.carried}
    assert all(where[f"W({layer})"].device and not where[f"m({layer})"].device for layer in hosted)


@pytest.mark.parametrize("memory", ["contiguous", "paged"])
def test_superoffload_updates_early_and_the_last_tenth_on_the_device(memory: Memory) -> None:
    instance = steady("choose")
    schedule = scheduled("superoffload", instance, memory)
    gradient = {named(instance, o): o.end_ns for o in copies(schedule, "offload")}
    updates = on_host(schedule)
    free = 0
    for update in updates:
        assert update.start_ns == max(free, gradient[named(instance, update)])
        free = update.end_ns
    assert updates[0].end_ns < max(o.end_ns for o in runs(schedule) if o.stream == "compute")
    order = [k for k, task in enumerate(instance.tasks) if task.may_run_on_host]
    kept = [k for k in order if k not in {o.task for o in updates}]
    assert kept == order[-len(kept) :]
    sizes = {k: instance.blocks[instance.tasks[k].inputs[0]].bytes for k in order}
    share = sum(sizes[k] for k in kept) / sum(sizes.values())
    assert share <= 0.1 < share + sizes[order[-len(kept) - 1]] / sum(sizes.values())


def test_updating_early_is_never_slower_and_on_a_host_that_must_do_all_it_does_all() -> None:
    for side in ("host", "choose"):
        instance = steady(side)
        early, late = (scheduled(name, instance).makespan_ns for name in ("superoffload", "zero-offload"))
        assert early < late
    instance = steady("host")
    assert len(on_host(scheduled("superoffload", instance))) == sum(t.may_run_on_host for t in instance.tasks)


@pytest.mark.parametrize("name", ON_HOST)
def test_one_stream_for_both_directions_and_other_optimizers(name: str) -> None:
    for optimizer in ("sgd", "momentum"):
        workload = Workload(
            "lenet", 64, "a100", engines="single", steady=True, optimizer=optimizer, optimizer_on="host"
        )
        assert scheduled(name, workload.instance("64MiB"), "paged").makespan_ns > 0


@pytest.mark.parametrize("name", ON_HOST)
def test_refusals_are_sentences(name: str) -> None:
    method = find_method(name).call
    plain = Workload("lenet", 4, "k40").instance("64MiB")
    on_device = Workload("lenet", 4, "k40", steady=True).instance("64MiB")
    for instance in (plain, on_device):
        with pytest.raises(Refusal, match="no update of weights may run on the host; ask for a steady state"):
            method(instance, Limits())
    ends = Workload(
        "lenet", 4, "a100", steady=True, optimizer="adam", optimizer_on="host", host_memory="1GiB"
    )
    with pytest.raises(Refusal, match="host memory ends"):
        method(ends.instance("64MiB"), Limits())
    tight = Workload("lenet", 64, "a100", steady=True, optimizer="adam", optimizer_on="host")
    with pytest.raises(Refusal, match=r"no place for .* at task "):
        method(tight.instance("1.05xMmin"), Limits())
