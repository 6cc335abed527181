"""Layers of GLP4NN's Table 5 on devices, simulated and modelled when asked for; what its authors measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property

from pebbler.instances.devices.caffe import TABLE_5, ConvLayer, Direction, caffe_kernels
from pebbler.instances.devices.device import Device, find_device
from pebbler.instances.devices.kernels import Kernel, LayerKernels
from pebbler.instances.devices.occupancy import execution_limits
from pebbler.instances.errors import PebblerError
from pebbler.solver.streams.count import StreamCount, count_streams
from pebbler.solver.streams.glp4nn import ModelName
from pebbler.validate.streams.concurrent import speedups, streams_ns

PAPER_DEVICES = ("K40", "P100", "TitanXp")
"""Devices of Table 3."""
NEWER_DEVICES = ("A100", "H200")
NETWORKS = tuple(dict.fromkeys(layer.name.partition("/")[0] for layer in TABLE_5))
FIRST = ("cifar10/conv1", "siamese/conv1", "siamese/conv1_p", "caffenet/conv1")
"""Layers that read images, of which Caffe computes no gradient."""

WORKED_EXAMPLE = LayerKernels(
    t_launch_ns=5000,
    kernels=(
        Kernel(
            name="im2col",
            grid=(18, 1, 1),
            block=(512, 1, 1),
            shared_bytes=0,
            registers=33,
            duration_ns=30_000,
        ),
        Kernel(
            name="sgemm",
            grid=(48, 1, 1),
            block=(256, 1, 1),
            shared_bytes=8448,
            registers=70,
            duration_ns=110_000,
        ),
        Kernel(
            name="gemmk1",
            grid=(72, 1, 1),
            block=(256, 1, 1),
            shared_bytes=0,
            registers=30,
            duration_ns=14_000,
        ),
    ),
)
"""CaffeNet's conv1 on a K40C, after Fig. 6: grid and registers of im2col are printed, the rest is made up."""

LENET_LOG = LayerKernels(
    t_launch_ns=2963,
    kernels=(
        Kernel(
            name="im2col", grid=(2, 1, 1), block=(512, 1, 1), shared_bytes=0, registers=33, duration_ns=17550
        ),
        Kernel(
            name="sgemm",
            grid=(9, 1, 1),
            block=(16, 16, 1),
            shared_bytes=8468,
            registers=71,
            duration_ns=14820,
        ),
        Kernel(
            name="gemmk1",
            grid=(18, 1, 1),
            block=(256, 1, 1),
            shared_bytes=272,
            registers=12,
            duration_ns=3780,
        ),
    ),
)
"""LeNet's conv1 in the history of the authors' repository.

Mean durations and idle time are those of ``LOG``, configurations those of ``NVPROF``, profiles of a K40c."""
LENET_MEASURED_MS = {1: ("2.84", "2.91"), 2: ("1.93", ""), 3: ("1.54 to 1.71", "1.97"), 4: ("", "2.09")}
"""Milliseconds of 64 samples by number of streams, in ``LOG`` and from first to last kernel in ``NVPROF``."""


@dataclass(frozen=True)
class Case:
    """A layer's pass on a device, simulated and modelled when it is asked for."""

    layer: ConvLayer
    device: Device
    direction: Direction

    @cached_property
    def kernels(self) -> LayerKernels:
        """What Caffe launches for one sample."""
        first = self.direction == "backward" and self.layer.name in FIRST
        return caffe_kernels(self.device, self.layer.conv, "BP2" if first else self.direction)

    @cached_property
    def gains(self) -> dict[int, float]:
        """Speed-up by number of streams."""
        return speedups(self.kernels, self.device, self.layer.conv.batch)

    @property
    def best(self) -> int:
        """The fewest streams of the greatest speed-up."""
        return max(self.gains, key=lambda streams: (self.gains[streams], -streams))

    @cached_property
    def one_ns(self) -> int:
        """Time on one stream."""
        return streams_ns(self.kernels, self.device, self.layer.conv.batch, 1)

    @property
    def limits(self) -> dict[str, float]:
        """Speed-up if nothing but the host's launches took time, and nothing but the blocks' work."""
        batch = self.layer.conv.batch
        processors = execution_limits(self.device).multiprocessors
        work = sum(k.invocations * k.blocks * (k.work_ns or 0) for k in self.kernels.kernels) / processors
        last_launch = (batch * len(self.kernels.launches) - 1) * self.device.launch_ns
        return {"launches": self.one_ns / last_launch, "work": self.one_ns / (batch * work)}

    @cache  # noqa: B019 - cases live as long as the program
    def count(self, model: ModelName) -> StreamCount | None:
        """What a model says; None where it does not apply."""
        try:
            return count_streams(self.kernels, self.device, model)
        except PebblerError:
            return None

    def chosen(self, model: ModelName) -> int | None:
        """The number of streams that a model chooses, if it does."""
        count = self.count(model)
        return None if count is None else count.streams

    def chosen_ns(self, model: ModelName) -> int:
        """Time at a model's choice; without one the layer stays on one stream."""
        return streams_ns(self.kernels, self.device, self.layer.conv.batch, self.chosen(model) or 1)

    def speed(self, model: ModelName) -> float:
        """Speed-up at a model's choice."""
        return self.one_ns / self.chosen_ns(model)


@cache
def case(layer: ConvLayer, device_name: str, direction: Direction = "forward") -> Case:
    """Return the one case of a layer's pass on a device, so that its figures are computed once."""
    return Case(layer, find_device(device_name), direction)


def cases(device_name: str, direction: Direction = "forward", network: str = "") -> list[Case]:
    """Return the cases of all layers, or of those of a network."""
    return [case(layer, device_name, direction) for layer in TABLE_5 if layer.name.startswith(network)]


@dataclass(frozen=True)
class Iteration:
    """Both passes of a layer on a device, each with a number of streams of its own."""

    forward: Case
    backward: Case

    @property
    def name(self) -> str:
        """The layer's."""
        return self.forward.layer.name

    @property
    def one_ns(self) -> int:
        """Time on one stream."""
        return self.forward.one_ns + self.backward.one_ns

    @cached_property
    def implemented_ns(self) -> int:
        """Time with the streams of the model as implemented."""
        return self.forward.chosen_ns("as-implemented") + self.backward.chosen_ns("as-implemented")

    @property
    def speed(self) -> float:
        """Speed-up with these streams."""
        return self.one_ns / self.implemented_ns


@cache
def iteration(layer: ConvLayer, device_name: str) -> Iteration:
    """Return both passes of a layer on a device."""
    return Iteration(case(layer, device_name), case(layer, device_name, "backward"))


def iterations(device_name: str, network: str = "") -> list[Iteration]:
    """Return both passes of all layers, or of those of a network."""
    return [iteration(layer, device_name) for layer in TABLE_5 if layer.name.startswith(network)]


def together(some: Sequence[Iteration]) -> float:
    """Speed-up of several layers one after the other."""
    return sum(one.one_ns for one in some) / sum(one.implemented_ns for one in some)
