"""Streams as algorithms: their number is decided together with workspaces, offloads and addresses.

Caffe's convolution on S streams (GLP4NN, ICPP 2018) needs S lowered samples, which the paper does not count.
Here, each number of streams is an algorithm of the convolution's task: its workspace is the lowered samples,
and its duration is the simulated time of the whole batch. Every method then chooses the number of streams,
layer by layer, under the budget.
"""

from __future__ import annotations

import logging
from functools import lru_cache
from typing import Literal

import msgspec

from ...instances.applied import Transform
from ...instances.devices.caffe import buffer_bytes, caffe_kernels
from ...instances.devices.device import Device, find_device, whole_ns
from ...instances.devices.roofline import Convolution, Pass, extra_seconds, undominated
from ...instances.errors import PebblerError
from ...instances.instance import Algorithm, Instance, Task
from ...instances.networks.taskgraph import TaskGraph, task_graph
from ...instances.networks.zoo import find_network
from ...instances.transforms import with_algorithms
from ...instances.workload import convolution_of
from ...validate.streams.concurrent import streams_ns

_log = logging.getLogger(__name__)

STREAMS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
"""Numbers of streams that a convolution is offered."""

Kept = Literal["also", "only"]
"""Algorithms of a convolution beside those of the streams: its own algorithms also, or only the streams'."""


def with_streams(instance: Instance, kept: Kept = "also") -> Instance:
    """Return the instance whose convolutions can run on several streams.

    A task gets an algorithm ``im2col-S`` for each number S in `STREAMS`, if it is faster than all algorithms
    that need no more workspace. The weight gradient on S streams has S - 1 more copies of itself in the
    workspace,
    and the time to add them up.

    Parameters
    ----------
    instance
        Made from a network of the zoo and the cost model of a packaged device.
    kept
        ``also``: the new algorithms stand beside those that a convolution has; ``only``: they replace them,
        as in Caffe without cuDNN.

    Raises
    ------
    PebblerError
        When the instance does not say what it was made from, or was transformed already.
    """
    device, graph = _origin(instance)
    tasks = []
    for task, described in zip(instance.tasks, graph.tasks, strict=True):
        if described.layer.kind.operation == "convolution" and described.role in ("FP", "BP1", "BP2"):
            layer = described.layer
            conv = convolution_of(graph.batch, layer, graph.network[layer.inputs[0]], layer)
            again = sum(graph.blocks[d].bytes for d in described.updates)
            extra = extra_seconds(device, described.extra_bytes + again)
            _log.info("%s on streams", task.name)
            added = [_algorithm(device, conv, described.role, streams, extra) for streams in STREAMS]
            task = _with(task, added, kept)
        tasks.append(task)
    return with_algorithms(instance, Transform(kind="streams", value=kept), tuple(tasks))


def _origin(instance: Instance) -> tuple[Device, TaskGraph]:
    """Return the device and the tasks that an instance was made from."""
    origin = instance.made_from
    network, device, images, kind = origin.network, origin.device, origin.sub_batch, origin.graph
    if origin.precision != "fp32":
        raise PebblerError(
            f"{instance.name}: streams have kernels of single precision; leave out 'precision'"
        )
    if origin.cost_model != "roofline" or not (network and device and images and kind):
        raise PebblerError(f"{instance.name}: streams need a network of the zoo on a device's cost model")
    graph = task_graph(find_network(network), images, kind, origin.weights_as_blocks, origin.optimizer)
    if [task.name for task in instance.tasks] != [task.name for task in graph.tasks]:
        raise PebblerError(f"{instance.name}: its tasks are not those of network '{network}'")
    return find_device(device, origin.cudnn), graph


def _with(task: Task, added: list[Algorithm], kept: Kept) -> Task:
    candidates = [*task.algorithms, *added] if kept == "also" else added
    return msgspec.structs.replace(task, algorithms=undominated(candidates))


@lru_cache(maxsize=65536)
def _algorithm(device: Device, conv: Convolution, role: Pass, streams: int, extra: float) -> Algorithm:
    duration = streams_ns(caffe_kernels(device, conv, role), device, conv.batch, streams)
    workspace = streams * buffer_bytes(conv)
    if role == "BP2" and streams > 1:
        copies = (streams - 1) * conv.filter_bytes
        workspace += copies
        extra += device.memory_seconds(copies + 2 * conv.filter_bytes) + device.launch_ns / 1e9
    return Algorithm(
        name=f"im2col-{streams}",
        duration_ns=duration + (whole_ns(extra) if extra else 0),
        workspace_bytes=workspace,
    )
