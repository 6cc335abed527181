from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from pebbler.instances.errors import PebblerError
from pebbler.instances.importers.torch_workload import TorchStepWorkload
from pebbler.instances.instance import Instance
from pebbler.instances.memory import least_budget, unlimited_peak, with_budget
from pebbler.solver.solve import solve
from pebbler.validate.schedule import Schedule

from ....extras import needs_torch

torch = needs_torch()

from pebbler.instances.importers.torch_step.calls import perform  # noqa: E402
from pebbler.instances.importers.torch_step.instance import StepInstance, step_instance  # noqa: E402
from pebbler.instances.importers.torch_step.memory import bytes_of, fresh, tensor_at  # noqa: E402
from pebbler.instances.importers.torch_step.persistent import (  # noqa: E402
    create_states,
    find_tensors,
    read_scalars,
    trained_parameters,
)
from pebbler.instances.importers.torch_step.record import Reference, StepRecord, TensorName  # noqa: E402
from pebbler.instances.importers.torch_step.steps import record_step  # noqa: E402

from .models import cnn, gpt, half_gpt, perceptron  # noqa: E402
from .replay import seeded, sparing, training  # noqa: E402


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Two threads for such small tensors only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def made_by(make: Callable[[int], Any]) -> Any:
    with seeded(3):
        return make(4)


def instance_of(record: StepRecord, **options: Any) -> StepInstance:
    return step_instance(record, name="mine", link="12GB/s", batch=4, **options)


def execute(
    step: StepInstance, record: StepRecord, schedule: Schedule, module: Any, optimizer: Any, given: Any
) -> Any:
    """Run a schedule's operations one after the other in one arena of its peak, and return the loss.

    What ends is filled with NaN, and what is copied goes through a host that has nothing else.
    """
    instance = step.instance
    arena = fresh(schedule.peak_bytes - instance.resident_bytes)
    named = find_tensors(module, optimizer)
    named |= {TensorName("input", str(number)): tensor for number, tensor in enumerate(given)}
    kept = {record.tensors[name].storage: tensor.untyped_storage() for name, tensor in named.items()}
    kept |= {d: fresh(record.storages[d].bytes) for d in step.resident if d not in kept}
    values = read_scalars(optimizer, trained_parameters(module, optimizer), record.scalars)
    number = {d: block for block, d in enumerate(step.storages)}
    place: dict[int, int] = {}
    host = {number[d]: bytes_of(storage).clone() for d, storage in kept.items() if d in number}
    pool = bytes_of(arena)

    def at(block: int) -> Any:
        return pool[place[block] : place[block] + instance.blocks[block].bytes]

    def tensor_of(reference: Reference) -> Any:
        if reference.storage in number:
            return tensor_at(reference, arena, place[number[reference.storage]])
        if record.storages[reference.storage].bytes == 0:
            return tensor_at(reference, fresh(0))
        constant = record.storages[reference.storage].values
        storage = kept[reference.storage] if constant is None else constant.untyped_storage()
        return tensor_at(reference, storage)

    for residence in schedule.residences:
        if residence.acquired_by is None:
            place[residence.block] = residence.offset
            at(residence.block).copy_(host[residence.block])
    acquired: dict[int | None, list[Any]] = {}
    waiting: dict[int, list[Any]] = {}
    for residence in schedule.residences:
        acquired.setdefault(residence.acquired_by, []).append(residence)
        for released in residence.released_after:
            waiting.setdefault(released, []).append(residence)
    left = {id(r): {*r.released_after} for r in schedule.residences}
    generator = {0: torch.get_rng_state()}
    ran: set[int] = set()
    for operator in record.operators:
        if operator.kind == "host":
            perform(operator, tensor_of, values)
    for operation in schedule.operations:
        if operation.kind == "offload":
            host[operation.block] = at(operation.block).clone()
        for residence in acquired.get(operation.id, ()):
            if residence.block is not None:
                place[residence.block] = residence.offset
        if operation.kind == "prefetch":
            at(operation.block).copy_(host[operation.block])
        if operation.kind == "run":
            operator = record.operators[step.operators[operation.task]]
            if operator.draw is not None:
                torch.set_rng_state(generator[operator.draw.before])
            spared = sparing(operator, record, tensor_of) if operation.task in ran else tensor_of
            ran.add(operation.task)
            perform(operator, spared, values)
            if operator.draw is not None:
                generator[operator.draw.after] = torch.get_rng_state()
        for residence in waiting.get(operation.id, ()):
            left[id(residence)] -= {operation.id}
            if not left[id(residence)]:
                pool[residence.offset : residence.offset + residence.bytes] = 0xFF
    torch.set_rng_state(generator[record.last_draw])
    for name, tensor in named.items():
        block = number.get(record.tensors[name].storage)
        if block is not None and name.role != "input":
            bytes_of(tensor.untyped_storage()).copy_(at(block))
    return tensor_of(record.loss).clone()


@pytest.mark.parametrize(
    ("make", "method", "budget"),
    [
        (cnn, "modnn", "85%"),
        (half_gpt, "modnn", "80%"),
        (gpt, "memonger-rule", "75%"),
        pytest.param(gpt, "modnn", "80%", marks=pytest.mark.slow),
        pytest.param(cnn, "memonger-rule", "90%", marks=pytest.mark.slow),
    ],
)
def test_a_schedule_of_the_instance_trains_as_eager_torch_does(
    make: Callable[[int], Any], method: str, budget: str
) -> None:
    """With what leaves and comes back, and what runs again, in one arena, to the last bit."""
    eager, planned = made_by(make), made_by(make)
    module, _, inputs, optimizer = planned
    record = record_step(*planned, clip=0.5)
    step = instance_of(record)
    instance = with_budget(step.instance, budget)
    schedule = solve(instance, method).schedule
    assert schedule is not None
    assert schedule.peak_bytes <= instance.budget_bytes < unlimited_peak(instance)
    runs = [operation.task for operation in schedule.operations if operation.kind == "run"]
    copies = [operation for operation in schedule.operations if operation.kind != "run"]
    assert copies or method != "modnn"
    assert len(runs) > len(set(runs)) or method != "memonger-rule"
    batches = [tuple(tensor.roll(number, 0) for tensor in inputs) for number in range(2)]
    with seeded(5):
        wanted = list(training(eager, batches, 0.5, lambda _: 1.0))
    create_states(module, optimizer)
    with seeded(5):
        for batch, loss in zip(batches, wanted, strict=True):
            assert torch.equal(execute(step, record, schedule, module, optimizer, batch), loss)
    for one, other in zip(eager[0].state_dict().values(), module.state_dict().values(), strict=True):
        assert torch.equal(one, other)
    for one, other in zip(eager[3].state.values(), optimizer.state.values(), strict=True):
        assert all(torch.equal(one[key], other[key]) for key in one)


@pytest.mark.parametrize("make", [gpt, cnn, half_gpt])
def test_the_peak_without_a_limit_is_that_of_eager_torch(make: Callable[[int], Any]) -> None:
    """Without scratch, which weak references to results do not see, and but for the alignment."""
    record = record_step(*made_by(make), clip=0.5)
    instance = without_scratch(instance_of(record).instance)
    slack = instance.alignment_bytes * len(instance.blocks)
    assert 0.98 * record.eager_peak_bytes < unlimited_peak(instance) < record.eager_peak_bytes + slack


def without_scratch(instance: Instance) -> Instance:
    tasks = tuple(
        msgspec.structs.replace(
            task,
            algorithms=tuple(msgspec.structs.replace(a, workspace_bytes=0) for a in task.algorithms),
        )
        for task in instance.tasks
    )
    return msgspec.structs.replace(instance, tasks=tasks)


def test_tasks_and_blocks_are_what_the_record_says() -> None:
    record = record_step(*made_by(perceptron))
    step = instance_of(record)
    instance = step.instance
    blocks = {block.name: block for block in instance.blocks}
    tasks = {task.name: task for task in instance.tasks}
    assert [record.operators[k].name for k in step.operators] == [task.name for task in instance.tasks]
    assert [record.storages[d].name for d in step.storages] == [block.name for block in instance.blocks]
    weight, moment, gradient = blocks["W(0.weight)"], blocks["S(0.weight exp_avg)"], blocks["dW(0.weight)"]
    for block in (weight, moment):
        assert (block.bytes, block.initially, block.finally_) == (4 * 6 * 8, "device", "device")
        assert block.offload_ns == block.prefetch_ns == 16
    assert (gradient.initially, gradient.finally_) == ("absent", "anywhere")
    assert blocks["X(0)"].initially == "device"
    assert not any(name.endswith(" step)") for name in blocks), "counts of steps are on the host"
    update = tasks["UP(0.weight addcdiv_)"]
    assert [instance.blocks[b].name for b in update.updates] == ["W(0.weight)"]
    assert not update.recomputable
    assert tasks["FP(1 gelu)"].recomputable
    assert tasks["FP(1 gelu)"].algorithms[0].workspace_bytes == 0
    assert tasks["BP(0 sum)"].algorithms[0].duration_ns > 0


def test_scratch_is_what_results_take_that_are_copied_and_what_kernels_allocate() -> None:
    module = torch.nn.Linear(32, 64)

    def step(x: Any) -> Any:
        return torch.nn.functional.layer_norm(module(x), (64,)).bfloat16().mean()

    record = record_step(module, step, (torch.randn(100, 32),), torch.optim.SGD(module.parameters(), lr=0.1))
    tasks = {task.name: task.algorithms[0] for task in instance_of(record).instance.tasks}
    for name in ("BP(Linear mm)", "FP(step _to_copy)"):
        assert (tasks[name].name, tasks[name].workspace_bytes) == ("out", 0)
    norm = tasks["FP(step native_layer_norm)"]
    assert norm.name == "copied"
    assert norm.workspace_bytes == 4 * 100 * 64 + 2 * 448, "output, mean and deviation, each a multiple of 64"
    assert tasks["FP(step mean)"].workspace_bytes >= 4 * 100 * 64, "it sums in single precision"


def test_the_gradient_of_a_loss_is_written_where_it_belongs() -> None:
    """The loss is a mean, but its gradient has the size of the scores, which are often the largest tensor."""
    record = record_step(*made_by(gpt))
    manners = {one.overload._schema.name: one.manner for one in record.operators if "nll_loss" in one.name}
    assert manners == {"aten::nll_loss_forward": "copied", "aten::nll_loss_backward": "out"}


def test_weights_that_stay_are_blocks_where_they_are_rewritten() -> None:
    """So no operator that reads them runs again on other values."""
    record = record_step(*made_by(perceptron))
    instance = instance_of(record, lasting="resident").instance
    blocks = {block.name: block for block in instance.blocks}
    assert blocks["W(0.weight)"].offload_ns is None
    assert blocks["W(0.weight)"].prefetch_ns is None
    assert blocks["FP(1 gelu)"].offload_ns is not None
    assert least_budget(instance) < unlimited_peak(instance)


def test_in_a_steady_state_weights_and_states_are_carried() -> None:
    workload = TorchStepWorkload("mine", 4, make_step=perceptron, link="1GB/s", steady=True)
    instance = workload.instance("100%")
    carried = {instance.blocks[b].name for b in instance.carried}
    assert len(carried) == 3 * 4
    assert {"W(0.weight)", "S(2.bias exp_avg_sq)"} <= carried
    assert all(instance.blocks[b].finally_ == "anywhere" for b in instance.carried)
    assert instance.made_from.steady
    within = solve(with_budget(instance, "70%"), "modnn")
    assert within.schedule is not None, "not all of them are on the device at once"


def test_operators_of_the_optimizer_alone_may_run_on_the_host() -> None:
    """They take as long as was measured, and run once; so does clipping, which is not of the optimizer."""
    workload = TorchStepWorkload("mine", 4, make_step=perceptron, link="1GB/s", clip=1.0, steady=True)
    phases = {operator.name: operator.phase for operator in workload.record().operators}
    for side, sides in (("host", ("host",)), ("choose", ("device", "host"))):
        asked = step_instance(
            workload.record(), name="mine", link="1GB/s", lasting="carried", optimizer_on=side
        )
        for task, plain in zip(asked.instance.tasks, workload.instance("100%").tasks, strict=True):
            if phases[task.name] != "optimizer":
                assert task == plain
                continue
            assert tuple(one.on for one in task.algorithms) == sides
            assert {msgspec.structs.replace(one, on="device") for one in task.algorithms} == {
                *plain.algorithms
            }
            assert not task.recomputable
    assert "optimizer" in phases.values()


def test_what_no_operator_rewrites_is_resident_or_a_block() -> None:
    module, step, inputs, _ = made_by(perceptron)
    module[0].weight.requires_grad_(False)
    optimizer = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=0.1)
    record = record_step(module, step, inputs, optimizer)
    staying, leaving = instance_of(record, lasting="resident"), instance_of(record)
    names = [record.storages[d].name for d in staying.resident if record.storages[d].role == "parameter"]
    assert names == ["W(0.weight)"]
    assert {*staying.resident} - {*leaving.resident} == {
        d for d, storage in enumerate(record.storages) if storage.name in names
    }
    assert staying.instance.resident_bytes - leaving.instance.resident_bytes == 4 * 6 * 8
    assert "W(0.weight)" in [block.name for block in leaving.instance.blocks]


def test_small_results_that_are_written_once_are_resident() -> None:
    """Clipping reads the norms of all gradients at once; what it multiplies by is no block either."""
    record = record_step(*made_by(perceptron), clip=0.5)
    step = instance_of(record)
    operators = [record.operators[k] for k in step.operators]
    norms = {d for one in operators if "linalg_vector_norm" in one.name for d in one.outputs}
    assert norms
    assert norms <= {*step.resident}
    assert all(record.storages[d].bytes <= 64 for d in step.resident if record.storages[d].role == "data")
    assert step.instance.resident_bytes == sum(64 for d in step.resident)
    rewritten = {d for one in operators for d in one.updates}
    of_optimizer = {d for one in operators if one.phase == "optimizer" for d in (*one.reads, *one.outputs)}
    assert not {*step.resident} & (rewritten | of_optimizer)
    for task in step.instance.tasks:
        assert not task.recomputable or task.outputs, "what makes nothing but such results runs once"


def test_without_an_optimizer_the_step_ends_with_the_gradients() -> None:
    module, step, inputs, _ = made_by(perceptron)
    record = record_step(module, step, inputs)
    blocks = {block.name: block for block in instance_of(record).instance.blocks}
    assert {operator.phase for operator in record.operators} == {"forward", "backward"}
    assert blocks["dW(2.bias)"].finally_ == "device"
    assert set(record.gradients) == {"0.weight", "0.bias", "2.weight", "2.bias"}


def test_a_workload_records_the_step_once_and_has_one_round() -> None:
    calls = []

    def make(batch: int) -> Any:
        calls.append(batch)
        return perceptron(batch)

    workload = TorchStepWorkload("my net", 4, make_step=make, link="12GB/s", clip=1.0)
    instance = workload.instance("90%")
    assert instance.budget_bytes < unlimited_peak(workload.instance("100%"))
    assert calls == [4]
    assert (instance.name, instance.made_from.network, instance.made_from.batch) == ("my-net-b4", "my net", 4)
    assert workload.parameter_bytes() == 4 * (6 * 8 + 8 + 8 * 3 + 3)
    assert any(task.name.startswith("CLIP") for task in instance.tasks)
    with pytest.raises(PebblerError, match="in one round of the batch; accumulate gradients"):
        workload.instance("90%", 2)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"link": "12GB/s", "device": "v100"}, "recorded where its module is, with times of its own"),
        ({"link": "1GB/s", "steady": True, "optimizer": "sgd"}, "the optimizer is what make_step returns"),
        ({"link": "wide"}, "'wide' is not a link"),
        ({"link": "1GB/s", "precision": "bf16"}, "leave 'precision' out"),
        (
            {"link": "1GB/s", "steady": True, "optimizer_on": "host", "host_bandwidth": "9GB/s"},
            "takes as long as it was measured",
        ),
    ],
)
def test_other_choices_of_a_workload_are_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(PebblerError, match=told):
        TorchStepWorkload("mine", 4, make_step=perceptron, **options)
