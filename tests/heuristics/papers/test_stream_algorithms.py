"""Streams as algorithms: their workspaces and times, and methods that decide their number."""

from __future__ import annotations

import msgspec
import pytest

from pebbler.heuristics.papers.stream_algorithms import STREAMS, with_streams
from pebbler.instances.devices.caffe import buffer_bytes, caffe_kernels, find_layer
from pebbler.instances.devices.device import find_device
from pebbler.instances.devices.roofline import GAIN
from pebbler.instances.errors import PebblerError
from pebbler.instances.instance import Algorithm, Instance
from pebbler.instances.memory import least_budget, with_budget
from pebbler.instances.transforms import with_mask
from pebbler.instances.workload import Workload
from pebbler.solver.solve import solve
from pebbler.validate.streams.concurrent import streams_ns

K40 = find_device("K40")


@pytest.fixture(scope="module")
def cifar10() -> Instance:
    return Workload("cifar10_quick", 32, "k40").instance("1GiB")


def algorithms(instance: Instance, name: str) -> dict[str, Algorithm]:
    (task,) = (task for task in instance.tasks if task.name == name)
    return {algorithm.name: algorithm for algorithm in task.algorithms}


def test_a_forward_task_has_a_buffer_a_stream_and_the_simulated_time(cifar10: Instance) -> None:
    conv = find_layer("cifar10_quick/conv3", 32).conv
    kernels = caffe_kernels(K40, conv, "FP")
    found = algorithms(with_streams(cifar10, "only"), "FP(conv3)")
    extra = found["im2col-1"].duration_ns - streams_ns(kernels, K40, 32, 1)
    assert extra > K40.launch_ns  # its ReLU
    assert len(found) > 2
    for name, algorithm in found.items():
        streams = int(name.removeprefix("im2col-"))
        assert streams in STREAMS
        assert algorithm.workspace_bytes == streams * buffer_bytes(conv)
        assert algorithm.duration_ns == streams_ns(kernels, K40, 32, streams) + extra


def test_weight_gradients_on_streams_are_copied_and_added_up(cifar10: Instance) -> None:
    conv = find_layer("cifar10_quick/conv2", 32).conv
    found = algorithms(with_streams(cifar10, "only"), "BP2(conv2)")
    kernels = caffe_kernels(K40, conv, "BP2")
    assert found["im2col-1"].duration_ns == streams_ns(kernels, K40, 32, 1)
    assert found["im2col-2"].workspace_bytes == 2 * buffer_bytes(conv) + conv.filter_bytes
    adding = K40.memory_seconds(3 * conv.filter_bytes) + K40.launch_ns / 1e9
    assert found["im2col-2"].duration_ns == streams_ns(kernels, K40, 32, 2) + round(adding * 1e9)


def test_more_workspace_is_only_offered_for_less_time(cifar10: Instance) -> None:
    for kept in ("also", "only"):
        for task in with_streams(cifar10, kept).tasks:  # type: ignore[arg-type]
            for less, more in zip(task.algorithms, task.algorithms[1:], strict=False):
                assert less.workspace_bytes <= more.workspace_bytes
                assert more.duration_ns < GAIN * less.duration_ns


def test_only_convolutions_change_and_what_they_had_may_stay(cifar10: Instance) -> None:
    also, only = with_streams(cifar10), with_streams(cifar10, "only")
    assert [transform.word for transform in also.applied] == ["streams=also"]
    for before, with_both, with_one in zip(cifar10.tasks, also.tasks, only.tasks, strict=True):
        if "(conv" not in before.name:
            assert before == with_both == with_one
        else:
            assert all(algorithm.name.startswith("im2col-") for algorithm in with_one.algorithms)
            assert with_both.algorithms[0].duration_ns <= before.algorithms[0].duration_ns
            assert with_both.algorithms[-1].duration_ns <= before.algorithms[-1].duration_ns


def test_other_transforms_come_before_or_after(cifar10: Instance) -> None:
    masked = with_mask(cifar10)
    assert [task.algorithms for task in with_streams(masked, "only").tasks] == [
        task.algorithms for task in with_streams(cifar10, "only").tasks
    ]


def chosen(instance: Instance, place: int) -> Instance:
    """The instance with one algorithm a task: of the least workspace (0), or the fastest (-1)."""
    tasks = (msgspec.structs.replace(task, algorithms=(task.algorithms[place],)) for task in instance.tasks)
    return msgspec.structs.replace(instance, tasks=tuple(tasks))


def test_methods_choose_streams_and_offloads_together() -> None:
    """A budget with room for more than one stream, but not for the fastest number everywhere."""
    joint = with_streams(Workload("cifar10_quick", 8, "k40").instance(0, check_budget=False), "only")
    budget = least_budget(joint) * 6 // 5
    assert least_budget(chosen(joint, -1)) > budget
    one = solve(with_budget(chosen(joint, 0), budget), "flow", time_limit=20)
    together = solve(with_budget(joint, budget), "flow", time_limit=20)
    assert one.makespan_ns is not None
    assert together.makespan_ns is not None
    assert together.schedule is not None
    assert together.makespan_ns < 0.75 * one.makespan_ns
    taken = {
        joint.tasks[run.task].algorithms[run.algorithm].name
        for run in together.schedule.operations
        if run.task is not None and run.algorithm is not None
    }
    assert len({name for name in taken if name.startswith("im2col-")}) > 1


def test_an_instance_of_unknown_origin_is_refused(chain: Instance, cifar10: Instance) -> None:
    with pytest.raises(PebblerError, match="streams need a network of the zoo on a device's cost model"):
        with_streams(chain)
    half = msgspec.structs.replace(cifar10.made_from, precision="bf16")
    with pytest.raises(PebblerError, match="streams have kernels of single precision"):
        with_streams(msgspec.structs.replace(cifar10, origin=half))
    other = msgspec.structs.replace(cifar10.made_from, network="lenet")
    renamed = msgspec.structs.replace(cifar10, origin=other)
    with pytest.raises(PebblerError, match="its tasks are not those of network 'lenet'"):
        with_streams(renamed)
