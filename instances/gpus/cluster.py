"""Several GPUs that train one network on portions of a batch: their bus, their hosts, and the gradients.

The classes mirror the optional key ``cluster`` of an instance file. Every GPU runs all tasks of the instance
on its portion. The GPUs are connected by the gradients, and by the bus that their copies share (moDNN, TPDS
2019,
section 6; Layrub, TACO 2018, section 5.6).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import msgspec

from ..errors import FormatError
from ..figures import (
    Natural,
    Positive,
    Text,
    are_naturals,
    is_natural,
    is_positive,
    is_text,
    require_types,
)
from ..units import LARGEST

SECOND = 10**9
"""Nanoseconds of a second."""


MOST_GPUS = 1024
"""Greatest number of GPUs, as each of them is simulated and checked."""

CORE_BYTES_PER_SECOND = 4 * 10**9
"""Bytes of gradients that a core adds in a second.

This is an assumption. A core of a Xeon E5-2630 v4 reaches about 12e9 bytes a second of memory traffic, and an
addition reads two numbers and writes one.
"""

HOST_BYTES_PER_SECOND = 10 * 10**9
"""Bytes of gradients that all cores together add in a second.

It is 2.5 times as much as for one core, as moDNN found a factor of 2 to 3 (TPDS 2019, section 7.5).
"""


class Gradient(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The gradient of a layer's weights, which the GPUs add up, and the weights that come back for it.

    Attributes
    ----------
    name, bytes
        Name for people, and size in bytes of the gradient and of the weights.
    offload_ns, prefetch_ns
        Time in nanoseconds to send the gradient to the host, and to return the weights, with the bus to
        itself.
    produced_by
        The task after which the gradient is complete.
    used_by
        Tasks that read the weights; the weights return after the last of these tasks.
    """

    name: Text
    bytes: Positive
    offload_ns: Natural
    prefetch_ns: Natural
    produced_by: Natural
    used_by: tuple[Natural, ...]

    def __post_init__(self) -> None:
        if not (
            is_text(self.name)
            and is_positive(self.bytes)
            and is_natural(self.offload_ns)
            and is_natural(self.prefetch_ns)
            and is_natural(self.produced_by)
            and are_naturals(self.used_by)
        ):
            require_types(self)


class Cluster(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """GPUs of one kind, spread evenly over nodes, and what they share.

    Attributes
    ----------
    gpus, nodes
        Number of GPUs, and number of nodes.
    bus_bytes_per_second
        Rate of a node's bus, which the copies of its GPUs share: in each direction if the instance's engines
        are ``duplex``, or in both together if they are ``single``.
    cores, core_bytes_per_second, host_bytes_per_second
        Number of a node's cores that add up gradients; bytes of gradients that one core adds in a second; and
        the most that all cores add in a second.
    network_bytes_per_second
        Rate of a node's link to the others in each direction. It is required with several nodes, and not
        allowed with one.
    nvlink_bytes_per_second
        Rate of a GPU's link to its neighbours in a ring, in each direction. If given, gradients are added up
        over these links instead of on the host; only with one node.
    gradients
        Gradients that are added up in this round; there are none before the last round.

    Raises
    ------
    FormatError
        When the numbers do not fit each other.
    """

    gpus: Positive
    nodes: Positive = 1
    bus_bytes_per_second: Positive
    cores: Positive = 1
    core_bytes_per_second: Positive
    host_bytes_per_second: Positive
    network_bytes_per_second: Positive | None = None
    nvlink_bytes_per_second: Positive | None = None
    gradients: tuple[Gradient, ...] = ()

    def __post_init__(self) -> None:
        require_types(self)
        if self.gpus > MOST_GPUS or self.cores > LARGEST:
            raise FormatError(f"cluster: at most {MOST_GPUS} GPUs, and {LARGEST} cores; give fewer")
        if self.gpus % self.nodes:
            raise FormatError(f"cluster: {self.nodes} nodes do not share {self.gpus} GPUs evenly")
        if (self.nodes > 1) != (self.network_bytes_per_second is not None):
            raise FormatError(
                "cluster: 'network_bytes_per_second' and several 'nodes' come together; give both or neither"
            )
        if self.nodes > 1 and self.nvlink_bytes_per_second is not None:
            raise FormatError("cluster: a ring of NVLinks does not reach over nodes; leave one of them out")

    def require_tasks(self, count: int) -> None:
        """Refuse gradients that name tasks which do not exist.

        Raises
        ------
        FormatError
            With the gradient and the task.
        """
        for i, gradient in enumerate(self.gradients):
            for k in (gradient.produced_by, *gradient.used_by):
                if k >= count:
                    raise FormatError(
                        f"cluster.gradients[{i}] ('{gradient.name}'): task index {k} is out of range "
                        f"0..{count - 1}"
                    )

    def naive_ns(self, gradients: Sequence[Gradient], *, staged: bool = False) -> int:
        """Return the time to add up gradients at the end, when one GPU gathers them and sends weights back.

        This is moDNN's baseline (TPDS 2019, sections 6.1 and 7.5). The link of the one GPU to the bus is the
        limit; its computation is not counted.

        Parameters
        ----------
        gradients
            All gradients of the iteration.
        staged
            Whether every copy goes to the host first, as with two calls of ``cudaMemcpy``, so that the copies
            of the others share the bus. If not, copies go from GPU to GPU.
        """
        others = self.gpus - 1
        passed = -(-others * sum(g.bytes for g in gradients) * SECOND // self.bus_bytes_per_second)
        out, into = sum(g.offload_ns for g in gradients), sum(g.prefetch_ns for g in gradients)
        through = max(others * max(out, into), passed)
        if not staged:
            return 2 * through
        return max(out, passed) + max(others * into, passed) + out + max(into, passed) if others else 0

    @property
    def node_gpus(self) -> int:
        """Number of GPUs of a node."""
        return self.gpus // self.nodes

    @property
    def joins_on_host(self) -> bool:
        """Whether gradients go through the host, and not over NVLink."""
        return self.nvlink_bytes_per_second is None

    def load(self, size: int, alone_ns: int) -> Fraction:
        """Return the bytes that a copy puts on the bus, by its size and its time with the bus to itself."""
        return load_of(size, alone_ns, self.bus_bytes_per_second)

    def passing_ns(self, size: int, alone_ns: int, copies: Fraction | int = 1) -> int:
        """Return the least time in which the bus passes copies; 0 if a copy takes no time."""
        load = copies * self.load(size, alone_ns) if alone_ns else 0
        return math.ceil(load * SECOND / self.bus_bytes_per_second)

    def accumulate_ns(self, gradient: Gradient) -> int:
        """Return the time in which a node's cores add one GPU's gradient to the weights."""
        rate = min(self.cores * self.core_bytes_per_second, self.host_bytes_per_second)
        return -(-gradient.bytes * SECOND // rate)

    def exchange_ns(self, gradient: Gradient) -> int:
        """Return the time of the nodes' exchange of one gradient, as a ring all-reduce over the network."""
        return _ring_ns(gradient.bytes, self.nodes, self.network_bytes_per_second)

    def reduce_ns(self, gradient: Gradient) -> int:
        """Return the time of the GPUs' ring all-reduce of one gradient over NVLink."""
        return _ring_ns(gradient.bytes, self.gpus, self.nvlink_bytes_per_second)


def load_of(size: int, alone_ns: int, bytes_per_second: int) -> Fraction:
    """Return the bytes that a copy puts on a bus or a link that it shares.

    Times are rounded to whole nanoseconds. The time that is lost by rounding down does not count as load, so
    that a bus as fast as its copies does not delay one that is alone.

    Parameters
    ----------
    size
        Bytes of the copy.
    alone_ns
        Its time in nanoseconds when nothing else is under way.
    bytes_per_second
        What the bus passes.
    """
    passed = Fraction(bytes_per_second * alone_ns, SECOND)
    rounded = 0 < passed < size <= passed + Fraction(bytes_per_second, SECOND)
    return passed if rounded else Fraction(size)


def _ring_ns(size: int, members: int, rate: int | None) -> int:
    """Return the time in which each member of a ring has sent its 2 (n - 1) parts of n; 0 without links."""
    if rate is None:
        return 0
    return -(-2 * (members - 1) * size * SECOND // (members * rate))
