"""A device on paper: streams, engines and a host whose times a test settles, to the nanosecond.

It computes nothing. Work is queued with the time at which the host asked for it, and simulated when the host
waits: each stream does its work in order, at a rate that depends on what is done beside it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pebbler.instances.networks.kinds import KINDS
from pebbler.validate.execution.device import DeviceError, Event, Launch, Stream
from pebbler.validate.execution.kernel import Kernel

Kinds = frozenset[str]
"""Of what is done at the same time: ``kernel``, ``offload``, ``prefetch``, ``move``, ``pause``."""


@dataclass
class VirtualEvent:
    """An event: when it came, once it has. Times are told as by CUDA, in single-precision milliseconds."""

    device: VirtualDevice
    time: float | None = None

    def synchronize(self) -> None:
        self.device.run_until(self)

    def since_ns(self, earlier: Event) -> int:
        assert isinstance(earlier, VirtualEvent)
        assert self.time is not None
        assert earlier.time is not None
        return round(1e6 * float(np.float32((self.time - earlier.time) / 1e6)))


@dataclass
class Item:
    """What a stream is asked for: work, an event to mark (`marks`) or to wait for (`waits`)."""

    asked: float
    kind: str = ""
    left: float = 0
    marks: VirtualEvent | None = None
    waits: VirtualEvent | None = None


@dataclass
class VirtualStream:
    device: VirtualDevice
    items: deque[Item] = field(default_factory=deque)

    def wait(self, event: Event) -> None:
        assert isinstance(event, VirtualEvent)
        self.items.append(Item(self.device.asks(), waits=event))

    def record(self) -> VirtualEvent:
        event = VirtualEvent(self.device)
        self.items.append(Item(self.device.asks(), marks=event))
        return event

    def pause(self, duration_ns: int) -> None:
        self.items.append(Item(self.device.asks(), "pause", duration_ns))

    def copy(self, target: int, source: int, bytes: int) -> None:  # noqa: A002
        kind = self.device.way(target, source)
        self.items.append(Item(self.device.asks(), kind, self.device.copy_ns(kind, bytes)))

    def fill(self, target: int, bytes: int) -> None:  # noqa: A002
        raise NotImplementedError

    def launch(self, launch: Launch, addresses: Mapping[str, int], first: int) -> None:
        del addresses, first
        asked = self.device.asks()
        if launch in self.device.lost_at:
            self.device.lost = True
        if launch in self.device.refused or self.device.lost:
            raise DeviceError("CUDNN_STATUS_NOT_SUPPORTED")
        self.device.launched.append(launch)
        self.items.append(Item(asked, "kernel", self.device.kernel_ns(launch)))


@dataclass
class VirtualGraph:
    """Kernels that were asked for on one stream, piece by piece, to be asked for at once."""

    stream: VirtualStream
    nodes: tuple[int, ...]

    def launch(self) -> None:
        device = self.stream.device
        asked = device.asks()
        self.stream.items += [Item(asked, "kernel", device.node_ns) for _ in range(sum(self.nodes))]


@dataclass
class VirtualDevice:
    """The device, and its host's clock.

    Attributes
    ----------
    host_ns
        Time of the host to ask for anything.
    kernel_ns
        Time of a launch alone: of a kernel, or of "nothing".
    node_ns
        Time of a kernel in a graph.
    copy_ns
        Time of a copy alone, by kind and bytes.
    rate
        How fast something of a kind is done beside other kinds; 1 alone.
    refused, lost_at
        Launches that fail: by themselves, or so that the device does nothing more.
    """

    host_ns: float = 0
    kernel_ns: Callable[[Launch], float] = lambda _: 1000
    node_ns: float = 600
    copy_ns: Callable[[str, int], float] = lambda _, size: 1000 + size
    rate: Callable[[str, Kinds], float] = lambda _, __: 1
    listed: Callable[[Kernel], list[tuple[str, int]]] = lambda _: [("kernel", 0)]
    refused: set[Launch] = field(default_factory=set)
    lost_at: set[Launch] = field(default_factory=set)
    launched: list[Launch] = field(default_factory=list)
    lost: bool = False
    now: float = 0
    name: str = "virtual"
    device: str = "Virtual device"
    kinds: frozenset[str] = frozenset(KINDS)

    def __post_init__(self) -> None:
        self._streams: dict[str, VirtualStream] = {}
        self._time = self.now
        self._end = 0
        self._hosts: list[range] = []

    # --- time -------------------------------------------------------------------------------------

    def asks(self) -> float:
        if self.lost:
            raise DeviceError("the context is lost")
        self.now += self.host_ns
        return self.now

    def run_until(self, event: VirtualEvent) -> None:
        """Let the streams go on until an event has come, and the host wait for it."""
        while True:
            self._pass_events()
            if event.time is not None:
                break
            heads = [stream.items[0] for stream in self._streams.values() if stream.items]
            active = [head for head in heads if head.kind and head.asked <= self._time]
            later = [head.asked - self._time for head in heads if head.asked > self._time]
            rates = [self.rate(one.kind, self._others(one, active)) for one in active]
            steps = [one.left / rate for one, rate in zip(active, rates, strict=True)]
            assert steps or later, "the event never comes"
            step = min(steps + later)
            self._time += step
            for one, rate in zip(active, rates, strict=True):
                one.left -= step * rate
        self.now = max(self.now, event.time)

    def _pass_events(self) -> None:
        """Take away what is done, and events and waits, which take no time and may let each other go on."""
        again = True
        while again:
            again = False
            for stream in self._streams.values():
                while stream.items and self._is_passed(stream.items[0]):
                    stream.items.popleft()
                    again = True

    def _is_passed(self, head: Item) -> bool:
        if head.asked > self._time:
            return False
        if head.marks is not None:
            head.marks.time = self._time
            return True
        if head.waits is not None:
            return head.waits.time is not None
        return head.left <= 1e-6

    @staticmethod
    def _others(one: Item, active: Sequence[Item]) -> Kinds:
        return frozenset(other.kind for other in active if other is not one) - {"pause"}

    # --- the rest of a backend --------------------------------------------------------------------

    def way(self, target: int, source: int) -> str:
        on_host = [any(address in place for place in self._hosts) for address in (target, source)]
        return {(True, False): "offload", (False, True): "prefetch", (False, False): "move"}[tuple(on_host)]

    def allocate(self, bytes: int) -> int:  # noqa: A002
        begin = self._end
        self._end += max(bytes, 1)
        return begin

    def allocate_host(self, bytes: int) -> int:  # noqa: A002
        begin = self.allocate(bytes)
        self._hosts.append(range(begin, self._end))
        return begin

    def allocate_pages(self, count: int, page_bytes: int) -> None:  # noqa: ARG002
        raise DeviceError("there are no pages")

    def reserve(self, bytes: int) -> int:  # noqa: A002
        raise NotImplementedError

    def map(self, address: int, pages: Sequence[int]) -> None:
        raise NotImplementedError

    def stream(self, name: str) -> VirtualStream:
        return self._streams.setdefault(name, VirtualStream(self))

    def algorithms(self, kernel: Kernel) -> list[tuple[str, int]]:
        return self.listed(kernel)

    def prepare(self, kernel: Kernel) -> Launch:
        return kernel.task, kernel.algorithm

    def nothing(self) -> Launch:
        return "nothing"

    def is_deterministic(self, kernel: Kernel) -> bool:  # noqa: ARG002
        return True

    def capture(
        self, streams: Sequence[Stream], work: Sequence[tuple[str, Callable[[], object]]]
    ) -> VirtualGraph:
        (stream,) = streams
        assert isinstance(stream, VirtualStream)
        before, nodes = stream.items, []
        for _, issue in work:
            stream.items = deque()
            issue()
            assert {item.kind for item in stream.items} <= {"kernel", ""}, "no pauses, for one"
            nodes.append(sum(bool(item.kind) for item in stream.items))
        stream.items = before
        return VirtualGraph(stream, tuple(nodes))

    def write(self, address: int, values: NDArray[Any]) -> None:
        pass

    def read(self, address: int, bytes: int) -> NDArray[np.uint8]:  # noqa: A002, ARG002
        return np.zeros(bytes, dtype=np.uint8)

    def versions(self) -> dict[str, str]:
        return {"driver": "1"}

    def energy_j(self) -> float | None:
        return None

    def record_kernels(self, work: Callable[[], object]) -> list[dict[str, Any]] | None:  # noqa: ARG002
        return None

    def memory_bytes(self) -> int:
        return 2**40

    def close(self) -> None:
        self._streams.clear()
        self._time = self.now
