"""Schedules of every method, executed: the same bits as without a budget."""

from __future__ import annotations

import math
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from numpy.typing import NDArray

from pebbler import list_methods, solve
from pebbler.heuristics.program.builder import ProgramBuilder
from pebbler.instances import transforms
from pebbler.instances.errors import PebblerError
from pebbler.instances.instance import Instance
from pebbler.instances.memory import least_budget, with_budget
from pebbler.instances.networks.zoo import find_network
from pebbler.instances.origin import Optimizer
from pebbler.instances.units import PAGE_BYTES, ceil_to
from pebbler.instances.workload import Workload
from pebbler.validate.check import check
from pebbler.validate.execution.cpu.backend import CpuBackend
from pebbler.validate.execution.cpu.kernels import kinds as cpu_kinds
from pebbler.validate.execution.cuda.calls import kinds as cuda_kinds
from pebbler.validate.execution.data import initial
from pebbler.validate.execution.device import DeviceError
from pebbler.validate.execution.executor import Execution, Executor
from pebbler.validate.execution.kernel import ADAM, DECAY, MOMENTUM, RATE, Kernel
from pebbler.validate.execution.plan import plan
from pebbler.validate.execution.rebuild import rebuild
from pebbler.validate.execution.training import descend
from pebbler.validate.execution.trial import (
    TOLERANCE,
    Trial,
    attempt,
    distance,
    identical,
    same_bits,
    tolerance_of,
)
from pebbler.validate.execution.unlimited import unlimited
from pebbler.validate.schedule import MemoryModel, Schedule

SMALL = {
    "lenet": ("lenet", 4),
    "cifar10_quick": ("cifar10_quick", 2),
    "vgg": ("vgg:groups=1-1-1-1-1,size=32,dense=64", 2),
    "resnet": ("resnet56:depth=8", 2),
}
OTHERS = {
    "unet:size=188,width=2": 1,
    "fcn:size=32,width=2": 2,
    "fcn8s:size=32,width=2": 1,
    "siamese": 2,
}
"""Networks with what those have not, and batches: transposed convolutions, maps, crops, pairs."""
OTHERS_EVEN = {"unet:size=188,width=2": 1.0, "fcn8s:size=32,width=2": 1.0, "siamese": 1.2}
"""A factor of the least budget for those of them that the suite takes."""
LARGER = ("caffenet:size=67", "googlenet:size=64", "convnext_t:size=32")
EVEN = {"cifar10_quick": (1.0, "paged")}
"""A factor of the least budget and a memory for networks that the suite takes."""
SLOW = pytest.mark.slow
ALWAYS = {"modnn", "local-search"}
"""Methods that find a schedule at every budget down to the least one."""


def least_pages(instance: Instance) -> int:
    """Least budget where every block takes whole pages."""
    needs = [
        sum(ceil_to(instance.blocks[d].bytes, PAGE_BYTES) for d in task.blocks)
        + min(ceil_to(algorithm.workspace_bytes, PAGE_BYTES) for algorithm in task.algorithms)
        for task in instance.tasks
    ]
    return instance.resident_bytes + max(needs)


def executed(instance: Instance, schedule: Schedule) -> Trial:
    assert check(instance, schedule).valid
    trial = attempt(instance, schedule, CpuBackend, repeat=1)
    assert trial.deterministic
    assert np.isfinite(trial.loss)
    return trial


@pytest.mark.parametrize(
    ("name", "factor", "memory"),
    [
        pytest.param(name, factor, memory, marks=[] if EVEN.get(name) == (factor, memory) else SLOW)
        for name in SMALL
        for factor in (1.0, 1.5)
        for memory in ("contiguous", "paged")
    ],
)
def test_the_schedule_of_every_method_computes_what_no_budget_does(
    name: str, factor: float, memory: str
) -> None:
    network, batch = SMALL[name]
    instance = Workload(network, batch, "K40").instance(0, check_budget=False)
    least = least_budget(instance) if memory == "contiguous" else least_pages(instance)
    instance = with_budget(instance, int(factor * least))
    returned: dict[str, bool] = {}
    seen: dict[tuple[object, ...], str] = {}
    for method in list_methods():
        if method.name in ("brute-force", "flow-parts"):  # the latter refuses whole tensors
            continue
        schedule = solve(instance, method.name, memory=memory, time_limit=0.05).schedule  # type: ignore[arg-type]
        if schedule is None:
            continue
        program = schedule.operations, schedule.residences
        if program not in seen:
            trial = executed(instance, schedule)
            seen[program] = method.name
            returned[method.name] = trial.identical and trial.max_abs_error == 0
        returned[method.name] = returned[seen[program]]
    assert all(returned.values()), returned
    assert "modnn" in returned


@pytest.mark.parametrize(
    ("name", "factor", "memory"),
    [
        pytest.param(name, factor, memory, marks=[] if OTHERS_EVEN.get(name) == factor else SLOW)
        for name in OTHERS
        for factor, memory in ((1.0, "contiguous"), (1.5, "contiguous"), (1.2, "paged"))
    ],
)
def test_the_other_kinds_of_layers_of_the_zoo_run_down_to_the_least_budget(
    name: str, factor: float, memory: str
) -> None:
    instance = Workload(name, OTHERS[name], "K40").instance(0, check_budget=False)
    least = least_budget(instance) if memory == "contiguous" else least_pages(instance)
    instance = with_budget(instance, int(factor * least))
    found = {}
    for method in ("modnn", "vdnn-all-m", "local-search"):
        schedule = solve(instance, method, memory=memory, time_limit=0.1).schedule  # type: ignore[arg-type]
        if schedule is not None:
            found[method] = executed(instance, schedule)
    assert "modnn" in found
    assert all(trial.identical and trial.max_abs_error == 0 for trial in found.values()), found.keys()
    assert any(
        operation.kind == "prefetch" for trial in found.values() for operation in trial.schedule.operations
    )


def test_the_networks_of_these_tests_have_every_kind_of_layer_of_the_convolutional_zoo() -> None:
    kinds = {
        layer.kind.name
        for network in [*(network for network, _ in SMALL.values()), *OTHERS, *LARGER]
        for layer in find_network(network).layers
    }
    elsewhere = {"sigmoid"}  # of torch's and ONNX models
    assert kinds - {"input"} == cpu_kinds() - elsewhere == cuda_kinds() - elsewhere


@pytest.mark.parametrize(
    "name", [LARGER[1], *(pytest.param(name, marks=pytest.mark.slow) for name in (LARGER[0], *LARGER[2:]))]
)
def test_larger_networks_run_under_the_least_budget(name: str) -> None:
    instance = Workload(name, 1, "K40").instance("1.0xMmin")
    assert executed(*solved(instance, "modnn")).identical


@pytest.mark.parametrize("engines", ["duplex", pytest.param("single", marks=SLOW)])
def test_rounds_accumulate_the_gradients_of_the_batch(engines: str) -> None:
    workload = Workload("lenet", 6, "K40", engines=engines)  # type: ignore[arg-type]
    whole = executed(*solved(workload.instance("3xMmin"), "network-wide"))
    parts = executed(*solved(workload.instance("1.0xMmin", sub_batch=2, rounds=3), "modnn"))
    assert parts.identical
    assert parts.loss == pytest.approx(whole.loss, rel=1e-6)
    one, other = whole.median.gradients, parts.median.gradients
    for name, values in one.items():
        np.testing.assert_allclose(other[name], values, rtol=0, atol=1e-4 * np.abs(values).max())


def test_batch_norm_under_sub_batches_computes_something_else_and_says_so() -> None:
    workload = Workload("resnet56:depth=8", 4, "K40")
    whole = executed(*solved(workload.instance("32MiB"), "network-wide"))
    parts = executed(*solved(workload.instance("1.5xMmin", sub_batch=2, rounds=2), "modnn"))
    assert parts.identical
    assert abs(parts.loss - whole.loss) > 1e-3
    assert "batch norm" in str(parts.instance.made_from.notes)
    assert whole.instance.made_from.notes is None


def test_weights_as_blocks_come_and_go() -> None:
    workload = Workload("lenet", 4, "K40", weights_as_blocks=True)
    instance = workload.instance("1.0xMmin", sub_batch=2, rounds=2)
    trial = executed(*solved(instance, "modnn"))
    resident = executed(*solved(Workload("lenet", 4, "K40").instance("3xMmin"), "network-wide"))
    assert trial.identical
    assert set(trial.median.gradients) == set(resident.median.gradients)
    for name, values in resident.median.gradients.items():
        found = trial.median.gradients[name]
        np.testing.assert_allclose(found, values, rtol=0, atol=1e-4 * np.abs(values).max())


def steady(optimizer: Optimizer | None, budget: str | int) -> Instance:
    return Workload("lenet", 4, "K40", steady=True, optimizer=optimizer).instance(budget)


STEADY: list[tuple[Optimizer, str, MemoryModel]] = [
    ("none", "1.0xMmin", "contiguous"),
    ("sgd", "1.0xMmin", "contiguous"),
    ("momentum", "1.3xMmin", "contiguous"),
    ("momentum", "16MiB", "paged"),
    ("adam", "1.0xMmin", "contiguous"),
    ("adam", "32MiB", "paged"),
]
STEADY_EVEN = (STEADY[0], STEADY[3], STEADY[4])
"""Those whose schedules the suite executes."""


@cache
def steady_case(optimizer: Optimizer, budget: str, memory: MemoryModel) -> tuple[Instance, Schedule]:
    return solved(steady(optimizer, budget), "modnn", memory)


@pytest.mark.parametrize(
    ("optimizer", "budget", "memory"),
    [pytest.param(*case, marks=[] if case in STEADY_EVEN else SLOW) for case in STEADY],
)
def test_a_steady_state_carries_its_numbers(optimizer: Optimizer, budget: str, memory: MemoryModel) -> None:
    """Two iterations, the second with what the first has left, give the bits of those without a budget."""
    instance, schedule = steady_case(optimizer, budget, memory)
    trial = executed(instance, schedule)
    assert trial.identical
    assert trial.max_abs_error == 0
    assert set(trial.median.carried) == {instance.blocks[d].name for d in instance.carried}


def test_the_steady_states_live_on_device_and_host_and_change_pages() -> None:
    cases = [steady_case(*case)[1] for case in STEADY]
    assert {state.device for schedule in cases for state in schedule.states} == {True, False}
    places = {
        (first.extents, last.extents)
        for schedule in cases
        for state in schedule.states
        if state.device and schedule.memory_model == "paged"
        for first, *_, last in [[r for r in schedule.residences if r.block == state.block] * 2]
    }
    assert any(first != last for first, last in places)


def after(instance: Instance, schedule: Schedule, count: int, *, poison: bool = True) -> list[Execution]:
    """Execute iterations in a row."""
    rebuilt = rebuild(instance)
    data = initial(rebuilt.graph.network, rebuilt.batch, 0, instance.made_from.optimizer)
    with Executor(CpuBackend(), plan(instance, schedule, rebuilt), 1, poison=poison) as executor:
        executor.load(data)
        return [executor.run() for _ in range(count)]


def test_a_steady_state_descends_as_training_does() -> None:
    """Its weights and losses are those of gradient descent with resident weights, step by step."""
    instance = steady("sgd", "1.1xMmin")
    schedule = solve(instance, "modnn").schedule
    assert schedule is not None
    found = after(instance, schedule, 3)
    whole = Workload("lenet", 4, "K40").instance("64MiB")
    plain = solve(whole, "network-wide").schedule
    assert plain is not None
    rebuilt = rebuild(whole)
    data = initial(rebuilt.graph.network, 4)
    batch = {name: values for name, values in data.items() if not name.startswith("W(")}
    with Executor(CpuBackend(), plan(whole, plain, rebuilt), 1) as executor:
        losses, weights = descend(executor, data, [batch] * 3, RATE)
    assert [one.loss for one in found] == pytest.approx(losses, rel=1e-4)
    assert abs(losses[1] - losses[0]) > 0.1
    for name, values in weights.items():
        np.testing.assert_allclose(found[-1].carried[name], values, rtol=0, atol=1e-4)


@pytest.mark.parametrize("optimizer", ["momentum", "adam", "adamw"])
def test_an_optimizer_remembers(optimizer: Optimizer) -> None:
    """What is kept after an iteration tells the gradients; the rules in double precision give the weights."""
    instance = steady(optimizer, "64MiB")
    schedule = solve(instance, "modnn").schedule
    assert schedule is not None
    rate, first, second, epsilon = ADAM
    begin = initial(rebuild(instance).graph.network, 4)
    executions = after(instance, schedule, 3)
    m_before, v_before = 0.0, 0.0
    w_before = begin["W(conv2)"].astype(np.float64)
    for execution in executions:
        w, m = (execution.carried[f"{letter}(conv2)"].astype(np.float64) for letter in "Wm")
        if optimizer == "momentum":
            assert np.abs(m - MOMENTUM * m_before).max() > 1e-3
            np.testing.assert_allclose(w, w_before - RATE * m, rtol=0, atol=1e-6)
        else:
            v = execution.carried["v(conv2)"].astype(np.float64)
            gradient = (m - first * m_before) / (1 - first)
            expected = second * v_before + (1 - second) * gradient**2
            np.testing.assert_allclose(v, expected, rtol=1e-2, atol=1e-3 * v.max())
            kept = w_before * (1 - rate * DECAY) if optimizer == "adamw" else w_before
            step = rate * m / (np.sqrt(v) + epsilon)
            np.testing.assert_allclose(w, kept - step, rtol=0, atol=1e-7 if optimizer == "adamw" else 1e-6)
            v_before = v
        w_before, m_before = w, m


def test_a_steady_state_that_is_not_carried_on_is_found() -> None:
    """An iteration that starts anew has other numbers than the second without a budget."""
    instance = steady("adam", "1.1xMmin")
    schedule = solve(instance, "modnn").schedule
    assert schedule is not None
    right = after(*unlimited(instance, schedule), 2)
    (again,) = after(instance, schedule, 1)
    assert identical(again, right[0])
    assert not identical(again, right[1])
    assert right[0].loss != right[1].loss


def test_signs_take_the_place_of_the_output_of_a_relu() -> None:
    plain = Workload("cifar10_quick", 2, "K40").instance("3xMmin")
    masked = transforms.with_mask(plain)
    without, trial = executed(*solved(plain, "network-wide")), executed(*solved(masked, "network-wide"))
    tight = with_budget(masked, least_budget(masked))
    assert executed(*solved(tight, "modnn")).identical
    assert trial.identical
    for name, values in without.median.gradients.items():
        assert trial.median.gradients[name].tobytes() == values.tobytes()


@pytest.mark.parametrize("memory", [pytest.param("contiguous", marks=SLOW), "paged"])
def test_tensors_in_parts(memory: str) -> None:
    whole = Workload("cifar10_quick", 24, "K40").instance(0, check_budget=False)
    instance = transforms.split_parts(whole, PAGE_BYTES)
    assert any(block.tensor for block in instance.blocks)
    least = least_budget(instance) if memory == "contiguous" else least_pages(instance)
    instance = with_budget(instance, int(1.2 * least))
    schedule = solve(instance, "modnn", memory=memory).schedule  # type: ignore[arg-type]
    if schedule is None or all(operation.kind == "run" for operation in schedule.operations):
        schedule = solve(instance, "local-search", memory=memory, time_limit=0.5).schedule  # type: ignore[arg-type]
    assert schedule is not None
    assert executed(instance, schedule).identical


@pytest.mark.parametrize("memory", ["contiguous", "paged"])
def test_blocks_are_moved_inside_the_device(memory: str) -> None:
    instance = Workload("lenet", 2, "K40").instance("64MiB")
    builder = ProgramBuilder(instance, memory=memory)  # type: ignore[arg-type]
    moved = 0
    for k, task in enumerate(instance.tasks):
        builder.run(k, 0)
        builder.release_dead(k)
        for d in task.outputs:
            if builder.is_resident(d):
                builder.move(d)
                moved += 1
    assert moved > 5
    trial = executed(instance, builder.finish("restless"))
    assert trial.identical


def test_a_release_may_be_named_twice() -> None:
    instance, schedule = solved(Workload("lenet", 2, "K40").instance("1.2xMmin"), "modnn")
    twice = tuple(
        replace(one, released_after=one.released_after * 2)
        for one in schedule.residences
        if one.block is not None
    )
    others = tuple(one for one in schedule.residences if one.block is None)
    trial = executed(instance, replace(schedule, residences=twice + others))
    assert trial.identical


@pytest.mark.parametrize("memory", ["contiguous", "paged"])
def test_copies_lie_in_host_memory_of_exactly_its_budget(memory: MemoryModel) -> None:
    """Every output leaves and comes back, through room for one copy."""
    instance = Workload("lenet", 2, "K40").instance("64MiB")
    instance = replace(instance, host_budget_bytes=max(block.bytes for block in instance.blocks))
    schedule = through_one_place(instance, memory)
    settled = plan(instance, schedule, rebuild(instance))
    assert settled.areas["host"] == instance.host_budget_bytes
    trial = executed(instance, schedule)
    assert trial.identical
    assert trial.max_abs_error == 0


def through_one_place(instance: Instance, memory: MemoryModel) -> Schedule:
    """Return a program in which every output is copied to the host and back; all copies share a few bytes."""
    builder = ProgramBuilder(instance, memory=memory)
    for k, task in enumerate(instance.tasks):
        builder.run(k, 0)
        builder.release_dead(k)
        for d in filter(builder.is_resident, task.outputs):
            builder.offload(d)
            builder.release(d)
            builder.prefetch(d)
    schedule = builder.finish("to and fro")
    copies = schedule.host_copies
    assert len(copies) > 2 * len({copy.offset for copy in copies})
    return schedule


def test_a_forward_task_runs_again() -> None:
    instance = transforms.with_recomputation(Workload("lenet", 2, "K40").instance("64MiB"))
    builder = ProgramBuilder(instance)
    names = [task.name for task in instance.tasks]
    pooled = instance.tasks[names.index("FP(pool1)")].outputs[0]
    for k, name in enumerate(names):
        if name == "BP2(conv2)":
            builder.run(names.index("FP(pool1)"), 0)
        builder.run(k, 0)
        if name == "FP(conv2)":
            builder.release(pooled)
    assert executed(instance, builder.finish("again")).identical


def test_causes_add_up_to_the_difference() -> None:
    trial = executed(*solved(Workload("lenet", 2, "K40").instance("1.5xMmin"), "vdnn-all-m"))
    causes = trial.causes()
    parts = (causes.kernels_ns, causes.copies_ns, causes.mapping_ns, causes.launches_ns)
    assert sum(parts) == trial.measured_ns - trial.predicted_ns
    assert causes.launches_ns > 0
    assert causes.mapping_ns == 0
    assert trial.predicted_ns == trial.scheduled_ns == trial.schedule.makespan_ns
    timed = trial.median.rounds[0]
    for operation, one in zip(trial.schedule.operations, timed, strict=True):
        assert one.start_ns <= one.end_ns
        for other in operation.after:
            assert timed[other].end_ns <= one.start_ns


def test_no_execution_is_no_trial() -> None:
    instance, schedule = solved(Workload("lenet", 1, "K40").instance("2xMmin"), "network-wide")
    with pytest.raises(PebblerError, match="give 1 or more"):
        attempt(instance, schedule, CpuBackend, repeat=0)


class Small(CpuBackend):
    """Has room for the budget, and for no more."""

    room = 0

    def allocate(self, bytes: int) -> int:  # noqa: A002
        if bytes > self.room:
            raise DeviceError(f"{bytes} bytes are too many")
        return super().allocate(bytes)


def test_what_fits_only_under_its_budget_is_run_without_a_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    instance, schedule = solved(Workload("cifar10_quick", 4, "K40").instance("1.0xMmin"), "modnn")
    monkeypatch.setattr(Small, "room", instance.pool_bytes)
    with pytest.raises(DeviceError, match="has no room, leave it out with --no-reference"):
        attempt(instance, schedule, Small, repeat=1)
    trial = attempt(instance, schedule, Small, repeat=1, reference=False)
    assert trial.right
    assert trial.reference_ns is None


@pytest.mark.parametrize(
    ("scales", "right"),
    [
        ((1.0, 1.01, 1.01), True),
        ((1.0, 1.01, 1.0), False),
        ((1.0, 1.01, math.nan), False),
        ((1.0, math.nan), False),
    ],
)
def test_numbers_that_vary_are_compared_with_how_they_vary_without_a_budget(
    scales: tuple[float, ...], right: bool
) -> None:
    """The first and the third device are without a budget; each scales the numbers that it is given."""
    instance, schedule = solved(Workload("lenet", 1, "K40").instance("1.5xMmin"), "modnn")
    opened = iter(scales)

    class Varying(CpuBackend):
        def __init__(self) -> None:
            super().__init__()
            self.scale = np.float32(next(opened))

        def is_deterministic(self, kernel: Kernel) -> bool:  # noqa: ARG002
            return False

        def write(self, address: int, values: NDArray[Any]) -> None:
            is_label = values.size == 4
            super().write(address, values if is_label else values.view(np.float32) * self.scale)

    trial = attempt(instance, schedule, Varying, repeat=1)
    assert next(opened, None) is None
    assert not trial.identical
    assert trial.right == right


def test_winograd_of_large_filters_may_round_more() -> None:
    def kernel(size: int, algorithm: str) -> Any:
        return SimpleNamespace(algorithm=algorithm, layer=SimpleNamespace(kernel=size))

    kernels = [kernel(5, "algo-1"), kernel(3, "winograd-nonfused")]
    assert tolerance_of(kernels) == TOLERANCE < tolerance_of([*kernels, kernel(5, "winograd-nonfused")])


def solved(instance: Instance, method: str, memory: MemoryModel = "contiguous") -> tuple[Instance, Schedule]:
    schedule = solve(instance, method, memory=memory).schedule
    assert schedule is not None
    return instance, schedule


MANY = 1_000_003
"""Values of more than one part, of which the last is short."""


@pytest.mark.parametrize("at", [0, 2**18, MANY - 1])
def test_arrays_differ_wherever_one_value_does(at: int) -> None:
    one = np.random.default_rng(0).standard_normal(MANY, dtype=np.float32)
    one[5], other = -7, one.copy()
    assert same_bits(one, one.copy())
    assert distance(one, one.copy()) == (0.0, distance(one, one)[1])
    other[5], other[at] = -7, other[at] - 3
    assert not same_bits(one, other)
    assert distance(other, one) == (abs(float(np.float32(other[at] - one[at]))), 7.0)
    other[at] = np.nan
    assert distance(other, one) == distance(one, other) == (math.inf, math.inf)
    assert same_bits(other, other.copy())
    other[at] = -np.inf
    assert distance(other, one)[0] == distance(other, other)[0] == math.inf


def test_empty_arrays_and_arrays_of_two_sizes() -> None:
    none, zeros = np.empty(0, np.float32), np.zeros(3, np.float32)
    assert distance(none, none) == (0.0, 0.0)
    assert distance(zeros, -zeros) == (0.0, 0.0)
    assert not same_bits(zeros, -zeros)
    assert not same_bits(none, zeros)
