"""Tasks that the host computes: the bits of the run without a budget, with the program's waits."""

from __future__ import annotations

from functools import cache

import pytest
from msgspec.structs import replace

from pebbler.heuristics.methods import Limits, find_method
from pebbler.instances.errors import PebblerError
from pebbler.instances.instance import Instance
from pebbler.instances.transforms import split_parts
from pebbler.instances.units import PAGE_BYTES
from pebbler.instances.workload import Optimizer, Side, Workload
from pebbler.solver.sides import take_sides
from pebbler.solver.steady import settle
from pebbler.validate.check import check
from pebbler.validate.execution.cpu.backend import CpuBackend
from pebbler.validate.execution.data import initial
from pebbler.validate.execution.emit import emit
from pebbler.validate.execution.executor import Execution, Executor
from pebbler.validate.execution.plan import plan
from pebbler.validate.execution.rebuild import rebuild
from pebbler.validate.execution.trial import attempt, identical
from pebbler.validate.execution.unlimited import unlimited
from pebbler.validate.schedule import MemoryModel, Schedule

from ...samples import mostly_slow

CASES: list[tuple[Optimizer, Side, str, MemoryModel]] = [
    ("sgd", "host", "1.2xMmin", "contiguous"),
    ("momentum", "host", "32MiB", "paged"),
    ("adam", "host", "1.2xMmin", "contiguous"),
    ("adam", "choose", "48MiB", "paged"),
]


@cache
def case(
    optimizer: Optimizer,
    side: Side,
    budget: str,
    memory: MemoryModel,
    host_memory: int | None = None,
    network: str = "lenet",
) -> tuple[Instance, Schedule]:
    """A steady state whose optimizer runs on the host, and moDNN's schedule."""
    workload = Workload(network, 4, "K40", steady=True, optimizer=optimizer, optimizer_on=side)
    instance = workload.instance(budget)
    if host_memory is not None:
        instance = replace(instance, host_budget_bytes=host_memory)
    if network != "lenet":
        instance = split_parts(instance, PAGE_BYTES)
    method = find_method("modnn")
    schedule = take_sides(instance, method, method.call, Limits(memory=memory)).schedule
    assert schedule is not None
    assert check(instance, schedule).reasons == ()
    assert any(operation.stream == "host" for operation in schedule.operations)
    return instance, schedule


def in_a_row(
    instance: Instance, schedule: Schedule, backend: CpuBackend, **options: object
) -> list[Execution]:
    """Execute two iterations, the second with what the first has left."""
    rebuilt = rebuild(instance)
    data = initial(rebuilt.graph.network, rebuilt.batch, 0, instance.made_from.optimizer)
    with Executor(backend, plan(instance, schedule, rebuilt), 1, poison=True, **options) as executor:  # type: ignore[arg-type]
        executor.load(data)
        return [executor.run() for _ in range(2)]


@pytest.mark.parametrize("chosen", mostly_slow(CASES, CASES[2:]), ids=str)
def test_bits_are_those_of_the_run_without_a_budget(
    chosen: tuple[Optimizer, Side, str, MemoryModel],
) -> None:
    """Two iterations in a row, with random pauses before what streams do."""
    instance, schedule = case(*chosen)
    trial = attempt(instance, schedule, lambda: CpuBackend((0.0005, 3)), repeat=2)
    assert trial.identical
    assert trial.max_abs_error == 0
    assert set(trial.median.carried) == {instance.blocks[d].name for d in instance.carried}


def test_bits_are_those_of_the_optimizer_on_the_device() -> None:
    """Where it runs makes no difference to what it computes; convolutions have their fastest algorithms."""
    instance, schedule = case("adam", "host", "512MiB", "contiguous")
    on_device = Workload("lenet", 4, "K40", steady=True, optimizer="adam").instance("512MiB")
    method = find_method("modnn")
    other = settle(on_device, method, method.call, Limits()).schedule
    assert other is not None
    for one, another in zip(
        in_a_row(instance, schedule, CpuBackend()), in_a_row(on_device, other, CpuBackend()), strict=True
    ):
        assert identical(one, another)


def test_copies_have_places_in_host_memory_that_ends() -> None:
    instance, schedule = case("adam", "host", "64MiB", "contiguous", 2**24)
    assert plan(instance, schedule, rebuild(instance)).areas["host"] == 2**24
    right = in_a_row(*unlimited(instance, schedule), CpuBackend())
    found = in_a_row(instance, schedule, CpuBackend((0.0005, 1)))
    assert all(identical(one, other) for one, other in zip(found, right, strict=True))


def test_the_parts_of_a_tensor_lie_together_on_the_host() -> None:
    """Its computation has one address for it there."""
    instance, schedule = case("sgd", "host", "512MiB", "contiguous", network="vgg:groups=1-1-1-1-1,size=32")
    places = {
        (load.tensor, load.place.offset - load.begin)
        for load in plan(instance, schedule, rebuild(instance)).loads
        if load.place.area == "host" and load.tensor.startswith("W(")
    }
    assert len(places) == len(dict(places))
    assert len(places) < sum(block.name.startswith("W(") for block in instance.blocks)


def test_a_missing_wait_is_found() -> None:
    """The update does not wait for the copy of its gradient, which comes late: it reads NaN."""
    instance, schedule = case("sgd", "host", "1.2xMmin", "contiguous")
    right = in_a_row(*unlimited(instance, schedule), CpuBackend())
    run = next(operation for operation in schedule.operations if operation.stream == "host")
    gradient = instance.tasks[run.task or 0].inputs[0]
    copy = next(
        o for o in schedule.operations if o.kind == "offload" and o.block == gradient and o.id in run.after
    )
    options = {"omit": [(run.id, other) for other in run.after]}
    rebuilt = rebuild(instance)
    data = initial(rebuilt.graph.network, rebuilt.batch, 0, "sgd")
    settled = plan(instance, schedule, rebuilt)
    with Executor(CpuBackend(), settled, 1, poison=True, **options) as executor:  # type: ignore[arg-type]
        executor.late_ns = {copy.id: 50_000_000}
        executor.load(data)
        assert not identical(executor.run(), right[0])


def test_what_cannot_be_is_refused_in_a_sentence() -> None:
    instance, schedule = case("sgd", "host", "1.2xMmin", "contiguous")
    with pytest.raises(PebblerError, match="a script computes nothing on the host, where 'OPT"):
        emit(instance, schedule, rebuild(instance))
    with pytest.raises(PebblerError, match="runs on the host, so that a round cannot be one graph"):
        attempt(instance, schedule, CpuBackend, graph=True)
