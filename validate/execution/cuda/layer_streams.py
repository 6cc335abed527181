"""A convolution layer on CUDA, sample by sample on several streams: GLP4NN's parallelism, executed.

Samples go round robin to the streams of a pool, sample n to stream n modulo S (Fu et al., ICPP 2018, section
3.1). A sample launches what it does in Caffe (`pebbler.instances.devices.caffe`): im2col and col2im are own
kernels with Caffe's launch configuration. Products are cuBLAS's, with a handle for every stream. The gradient
of the biases is a sum by an own kernel in place of a gemv. Every stream has one buffer for the lowered
matrix.

Results have the same bits for every S, which is the paper's convergence invariance (section 3.3.1) in a
strict sense. Outputs and gradients of the inputs are of one sample each. Gradients of the weights add up over
samples in an order without S: sample n is added to partial sum n modulo P, after sample n - P, and the
partial sums are added up in their order once all streams have been joined. P is fixed. Where S divides P, one
stream has all samples of a partial sum; elsewhere streams wait for each other's events.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ....instances.devices.caffe import CAFFE_THREADS, Direction, buffer_bytes
from ....instances.devices.occupancy import MOST_STREAMS
from ....instances.devices.roofline import FLOAT, Convolution
from ....instances.errors import PebblerError
from ....instances.units import format_time
from .backend import CudaBackend, CudaEvent, CudaLaunch, CudaStream
from .calls import BLOCK, Own, Product
from .providers import Operand

PARTIAL_SUMS = 32
"""Number P of partial sums: the greatest number of streams, and a multiple of every power of two up to it."""

STAND_IN = "Fake CUDA device"
"""Beginning of the device name of the tests' driver in host memory."""

Wait = Literal["fork", "order", "join"]
"""Kind of a wait: for the work before, for other streams' partial sums, or of later work for the streams."""

Arrays = dict[str, NDArray[np.float32]]
"""Arrays by word: ``x0``, ``w`` (the biases follow the weights), ``y``, ``dy``, ``dx0``, ``dw``."""

_ALIGNMENT = 512
"""Bytes that arrays are aligned to."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Passed:
    """One pass over the batch.

    Attributes
    ----------
    elapsed_ns
        Nanoseconds from before the fork to after the join, by events of the GPU.
    host_ns
        Nanoseconds of the host to issue the pass.
    """

    elapsed_ns: int
    host_ns: int


@dataclass(frozen=True, slots=True)
class Measured:
    """Measurements of a layer on several numbers of streams.

    Attributes
    ----------
    device
        Name of the GPU.
    times_ns
        Median time of a pass in nanoseconds, by number of streams.
    launch_ns
        Average host time of one launch in the pass on one stream, in nanoseconds.
    identical
        Whether all results are finite and have the same bits as on one stream.
    """

    device: str
    times_ns: dict[int, int]
    launch_ns: int
    identical: bool

    @property
    def is_stand_in(self) -> bool:
        """Whether the device was no GPU, so that the times mean nothing."""
        return self.device.startswith(STAND_IN)


def sizes_of(conv: Convolution) -> dict[str, int]:
    """Return the number of values of every operand of the whole batch, by word."""
    inputs, outputs = conv.input_bytes // FLOAT, conv.output_bytes // FLOAT
    parameters = conv.filter_bytes // FLOAT + conv.out_channels
    return {"x0": inputs, "w": parameters, "y": outputs, "dy": outputs, "dx0": inputs, "dw": parameters}


def draw(conv: Convolution, direction: Direction, seed: int = 0) -> Arrays:
    """Draw the inputs of a pass: normally distributed, with weights that keep outputs of the inputs' size."""
    rng = np.random.default_rng(seed)
    sizes = sizes_of(conv)
    drawn = {word: rng.standard_normal(sizes[word], dtype=np.float32) for word in _READ[direction]}
    drawn["w"] /= np.float32(np.sqrt(conv.in_channels // conv.groups * conv.kernel_h * conv.kernel_w))
    return drawn


_READ: dict[Direction, tuple[str, ...]] = {"forward": ("x0", "w"), "backward": ("x0", "w", "dy")}
"""Operands that a pass reads."""

_WRITTEN: dict[Direction, tuple[str, ...]] = {"forward": ("y",), "backward": ("dw", "dx0")}
"""Operands that a pass writes."""


def sample_calls(conv: Convolution, direction: Direction, *, adds: bool) -> list[Own | Product]:
    """Return the calls that Caffe makes for one sample, in order (``base_conv_layer.cpp``).

    Parameters
    ----------
    conv
        The layer.
    direction
        Forward, or backward: to the biases, the weights and the inputs.
    adds
        Whether the gradients of the weights are added to, and not written.
    """
    calls = _SampleCalls(conv)
    return list(calls.forward() if direction == "forward" else calls.backward(adds))


class _SampleCalls:
    """The calls for one sample.

    Matrices are row-major: cuBLAS is asked for the transposed product, with its factors swapped.
    """

    def __init__(self, conv: Convolution) -> None:
        self.conv = conv
        self.rows = conv.out_channels // conv.groups
        self.depth = conv.in_channels // conv.groups * conv.kernel_h * conv.kernel_w
        self.columns = conv.out_height * conv.out_width
        self.biases = conv.filter_bytes
        self.image = FLOAT * conv.in_channels * conv.in_height * conv.in_width
        self.output = FLOAT * conv.out_channels * self.columns

    def forward(self) -> Iterator[Own | Product]:
        """Return the calls of the forward pass."""
        rows, depth, columns, channels = self.rows, self.depth, self.columns, self.conv.out_channels
        yield from self._im2col()
        for group in range(self.conv.groups):
            operands = (self._lowered("x0", group), self._weights("w", group), self._outputs("y", group))
            sizes, leading = (columns, rows, depth), (columns, depth, columns)
            yield Product((False, False), sizes, leading, operands, adds=False)
        operands = (Operand("ones"), Operand("w", self.biases), self._outputs("y", 0))
        yield Product((False, False), (columns, channels, 1), (columns, 1, columns), operands, adds=True)

    def backward(self, adds: bool) -> Iterator[Own | Product]:
        """Return the calls of the backward pass."""
        rows, depth, columns, channels = self.rows, self.depth, self.columns, self.conv.out_channels
        biases = (self._outputs("dy", 0), Operand("dw", self.biases))
        in_one_part = (1, channels, columns, columns)  # so that it is one launch, as in Caffe
        yield Own("sum_channels", channels, (*biases, *in_one_part, int(adds)))
        yield from self._im2col()
        for group in range(self.conv.groups):
            operands = (self._lowered("x0", group), self._outputs("dy", group), self._weights("dw", group))
            sizes, leading = (depth, rows, columns), (columns, columns, depth)
            yield Product((True, False), sizes, leading, operands, adds)
        for group in range(self.conv.groups):
            operands = (self._outputs("dy", group), self._weights("w", group), self._lowered("dx0", group))
            sizes, leading = (columns, depth, rows), (columns, depth, columns)
            yield Product((False, True), sizes, leading, operands, adds=False)
        if self._is_lowered:
            n = self.conv.in_channels * self.conv.in_height * self.conv.in_width
            yield self._each("col2im", Operand("lowered"), Operand("dx0", per_image=self.image), n)

    @property
    def _is_lowered(self) -> bool:
        return buffer_bytes(self.conv) > 0

    def _im2col(self) -> Iterator[Own]:
        if self._is_lowered:
            n = self.conv.in_channels * self.columns
            yield self._each("im2col", Operand("x0", per_image=self.image), Operand("lowered"), n)

    def _each(self, name: str, source: Operand, target: Operand, n: int) -> Own:
        """Return a kernel with a thread for each of n values, as in Caffe."""
        conv = self.conv
        sizes = (conv.in_height, conv.in_width, conv.out_height, conv.out_width)
        window = (conv.kernel_h, conv.kernel_w, conv.stride, conv.pad)
        blocks = -(-n // CAFFE_THREADS)
        return Own(name, blocks, (source, target, *sizes, *window, n), threads=CAFFE_THREADS)

    def _lowered(self, word: str, group: int) -> Operand:
        """Return a group's part of the lowered matrix, or of the image if no lowering is needed."""
        offset = FLOAT * group * self.depth * self.columns
        return Operand("lowered", offset) if self._is_lowered else Operand(word, offset, self.image)

    def _weights(self, word: str, group: int) -> Operand:
        return Operand(word, FLOAT * group * self.rows * self.depth)

    def _outputs(self, word: str, group: int) -> Operand:
        return Operand(word, FLOAT * group * self.rows * self.columns, self.output)


class StreamedLayer:
    """One pass of a layer, ready to run on any number of streams of a pool.

    Parameters
    ----------
    backend
        A GPU, which the caller closes.
    conv
        The layer, with its batch.
    direction
        The pass.
    most
        Number of streams of the pool.
    sums
        Number P of partial sums of the weights' gradients.

    Raises
    ------
    DeviceError
        When the GPU has too little memory.
    """

    def __init__(
        self,
        backend: CudaBackend,
        conv: Convolution,
        direction: Direction,
        most: int,
        *,
        sums: int = PARTIAL_SUMS,
    ) -> None:
        self._backend = backend
        self._batch = conv.batch
        self._backward = direction == "backward"
        self._sums = min(sums, conv.batch)
        self._main = backend.stream("compute")
        self._pool = [backend.stream(f"pool-{number}") for number in range(most)]
        self._bytes = {word: FLOAT * count for word, count in sizes_of(conv).items()}
        self._written = _WRITTEN[direction]
        columns = conv.out_height * conv.out_width
        self._places = {
            word: backend.allocate(self._bytes[word]) for word in _READ[direction] + self._written
        }
        self._host = {word: backend.allocate_host(self._bytes[word]) for word in self._written}
        self._places["ones"] = backend.allocate(FLOAT * columns)
        backend.write(self._places["ones"], np.ones(columns, dtype=np.float32))
        self._buffer_bytes = buffer_bytes(conv)
        self._buffers = [backend.allocate(self._buffer_bytes) for _ in self._pool]
        self._stride = -(-self._bytes["dw"] // _ALIGNMENT) * _ALIGNMENT
        self._parts = backend.allocate(self._sums * self._stride) if self._backward else 0
        self._calls = [
            [self._bind(sample_calls(conv, direction, adds=adds), stream) for adds in (False, True)]
            for stream in self._pool
        ]
        self.launches = conv.batch * len(self._calls[0][0])
        values = self._bytes["dw"] // FLOAT
        parts = (Operand("parts"), Operand("dw"), self._sums, self._stride // FLOAT, values)
        self._add_up = self._bind([Own("sum_parts", -(-values // BLOCK), parts)], self._main)

    def _bind(self, calls: list[Own | Product], stream: CudaStream) -> CudaLaunch:
        return [self._backend.bind(call, stream) for call in calls]

    def load(self, arrays: Mapping[str, NDArray[np.float32]]) -> None:
        """Write the inputs of the pass."""
        for word, values in arrays.items():
            self._backend.write(self._places[word], values)

    def poison(self) -> None:
        """Fill the outputs of the pass with NaN, on the stream before the pass."""
        filled = [(self._places[word], self._bytes[word]) for word in self._written]
        filled += [(buffer, self._buffer_bytes) for buffer in self._buffers]
        filled += [(self._parts, self._sums * self._stride)] if self._backward else []
        for place, size in filled:
            if size:
                self._main.fill(place, size)

    def run(self, streams: int, *, omit: Collection[Wait] = ()) -> Passed:
        """Run the pass on the first streams of the pool; wait for its end.

        Parameters
        ----------
        streams
            S.
        omit
            Waits to leave out, for tests of whether the results show it.
        """
        samples = [self._sample(n, n % streams) for n in range(self._batch)]
        pool = self._pool[:streams]
        summed: dict[int, CudaEvent] = {}
        asked = time.perf_counter_ns()
        start = self._main.record()
        for stream in pool if "fork" not in omit else ():
            stream.wait(start)
        for n, (launch, places) in enumerate(samples):
            stream = pool[n % streams]
            if n - self._sums in summed and "order" not in omit:
                stream.wait(summed[n - self._sums])
            stream.launch(launch, places, n)
            if self._backward and self._sums % streams and n + self._sums < self._batch:
                summed[n] = stream.record()
        for stream in pool if "join" not in omit else ():
            self._main.wait(stream.record())
        if self._backward:
            self._main.launch(self._add_up, self._places | {"parts": self._parts}, 0)
        end = self._main.record()
        host_ns = time.perf_counter_ns() - asked
        end.synchronize()
        return Passed(end.since_ns(start), host_ns)

    def _sample(self, n: int, number: int) -> tuple[CudaLaunch, dict[str, int]]:
        """Return the launches of sample n on a stream of the pool, and the places of their operands."""
        places = self._places | {"lowered": self._buffers[number]}
        if self._backward:
            places["dw"] = self._parts + n % self._sums * self._stride
        return self._calls[number][n >= self._sums], places

    def results(self) -> Arrays:
        """Return the outputs of the pass, as the next operation of its stream sees them."""
        for word in self._written:
            self._main.copy(self._host[word], self._places[word], self._bytes[word])
        self._main.record().synchronize()
        return {
            word: self._backend.read(self._host[word], self._bytes[word]).view(np.float32)
            for word in self._written
        }


def measure(
    open_backend: Callable[[], CudaBackend],
    conv: Convolution,
    direction: Direction,
    counts: Collection[int],
    *,
    repeat: int = 5,
    seed: int = 0,
) -> Measured:
    """Run a layer on several numbers of streams: check the results of each, then measure the times in turns.

    Parameters
    ----------
    open_backend
        Function that opens the GPU, which is closed at the end.
    conv, direction
        The layer with its batch, and the pass.
    counts
        Numbers of streams, up to `MOST_STREAMS`; one stream is measured in any case.
    repeat
        Number of timed passes for each number of streams.
    seed
        Seed of the layer's inputs.

    Raises
    ------
    PebblerError
        For a number of streams that is too large, or when there is no GPU, or it has too little memory.
    """
    counts = tuple(dict.fromkeys((1, *counts)))
    for streams in counts:
        if not 1 <= streams <= MOST_STREAMS:
            raise PebblerError(f"{streams} streams cannot be measured; give 1 to {MOST_STREAMS}")
    backend = open_backend()
    try:
        layer = StreamedLayer(backend, conv, direction, max(counts))
        layer.load(draw(conv, direction, seed))
        reference: Arrays = {}
        identical = True
        for streams in counts:
            layer.poison()
            layer.run(streams)
            found = layer.results()
            reference = reference or found
            identical &= all(
                bool(np.isfinite(values).all()) and values.tobytes() == reference[word].tobytes()
                for word, values in found.items()
            )
        passes: dict[int, list[Passed]] = {streams: [] for streams in counts}
        for number in range(repeat):
            _log.info("pass %d of %d on each of %s streams", number + 1, repeat, ", ".join(map(str, counts)))
            for streams, done in passes.items():
                done.append(layer.run(streams))
    finally:
        backend.close()
    times = {
        streams: round(statistics.median(one.elapsed_ns for one in done)) for streams, done in passes.items()
    }
    for streams, elapsed in times.items():
        _log.info("%d streams: %s", streams, format_time(elapsed))
    host = statistics.median(one.host_ns for one in passes[1])
    return Measured(backend.device, times, round(host / layer.launches), identical)
