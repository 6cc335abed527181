"""Kernels side by side: against formulas, against a simulator by other means, and against a measured log."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest

from glp4nn_cases import LENET_LOG
from pebbler.instances.devices.caffe import TABLE_5, caffe_kernels
from pebbler.instances.devices.device import Device, find_device
from pebbler.instances.devices.kernels import Kernel, LayerKernels
from pebbler.instances.devices.occupancy import MOST_STREAMS, execution_limits
from pebbler.instances.errors import PebblerError
from pebbler.validate.streams.concurrent import block_times, speedups, streams_ns

from ...samples import mostly_slow

SOON = 1e-3


@pytest.fixture
def k40() -> Device:
    return find_device("K40")


def kernel(blocks: int, threads: int, duration: int, **more: int) -> Kernel:
    settings = {"name": f"k{blocks}-{threads}-{duration}", "shared_bytes": 0, "registers": 32, **more}
    return Kernel(grid=(blocks, 1, 1), block=(threads, 1, 1), duration_ns=duration, **settings)  # type: ignore[arg-type]


def layer(*kernels: Kernel, gap: int = 1000) -> LayerKernels:
    return LayerKernels(t_launch_ns=gap, kernels=kernels)


@pytest.mark.parametrize("name", ["K40", "P100", "H200"])
def test_a_kernel_alone_takes_its_duration(name: str) -> None:
    device = find_device(name)
    for row in TABLE_5:
        for one in caffe_kernels(device, row.conv, "backward").kernels:
            assert streams_ns(layer(one), device, 1, 1) == pytest.approx(one.duration_ns, abs=1)
            measured = kernel(one.blocks, one.threads, one.duration_ns, registers=one.registers)
            assert streams_ns(layer(measured), device, 1, 1) == pytest.approx(one.duration_ns, abs=1)


def test_one_stream_is_one_kernel_after_the_other(k40: Device) -> None:
    some = layer(kernel(7, 256, 20_000), kernel(90, 512, 30_000, invocations=2))
    assert streams_ns(some, k40, 5, 1, launch_ns=0) == pytest.approx(5 * 80_000 + 14 * 1000, abs=1)


def test_launches_of_one_host_thread_come_one_by_one(k40: Device) -> None:
    short = layer(kernel(1, 32, 2000), kernel(1, 32, 3000))
    for streams in (1, 2, 8):
        assert streams_ns(short, k40, 50, streams) == 99 * k40.launch_ns + 3000


def test_small_kernels_overlap_and_streams_without_samples_do_nothing(k40: Device) -> None:
    small = layer(kernel(1, 128, 50_000, work_ns=50_000))
    assert streams_ns(small, k40, 15, 15, launch_ns=0) == 50_000
    assert (
        streams_ns(small, k40, 16, 16, launch_ns=0) == 100_000
    )  # two on one multiprocessor, each half as fast
    assert streams_ns(small, k40, 4, 32, launch_ns=0) == 50_000


def test_blocks_that_cannot_fill_a_multiprocessor_share_it_at_no_cost(k40: Device) -> None:
    """A block whose work is a quarter of its time leaves room for three more."""
    idle = layer(kernel(15, 128, 40_000, work_ns=10_000))
    assert streams_ns(idle, k40, 4, 4, launch_ns=0) == 40_000
    assert streams_ns(idle, k40, 5, 5, launch_ns=0) == 50_000


@pytest.mark.parametrize(
    ("threads", "needs", "held"),
    [
        (1024, {}, 2),
        (32, {}, 16),
        (512, {"registers": 128}, 1),
        (64, {"shared_bytes": 20_000}, 2),
    ],
    ids=["threads", "blocks", "registers", "shared memory"],
)
def test_blocks_wait_for_every_resource(k40: Device, threads: int, needs: dict[str, int], held: int) -> None:
    """As many kernels run at a time as a multiprocessor holds of their blocks; one more comes after."""
    one = layer(kernel(15, threads, 40_000, work_ns=1, **needs))
    assert streams_ns(one, k40, held, 32, launch_ns=0) == 40_000
    assert streams_ns(one, k40, held + 1, 32, launch_ns=0) == 80_000


def test_a_kernel_waits_until_all_blocks_of_the_one_before_have_a_place(k40: Device) -> None:
    """Leftover policy: the second small kernel would fit at 20 us, but the large one's last block waits.

    The last of its 16 blocks has a place at 50 us, when the small one starts too; the second large one, ready
    at 60, has 14 places then, one at 90 and one at 100.
    """
    small = kernel(1, 32, 10_000, work_ns=1)
    large = kernel(16, 1024, 80_000, work_ns=1, registers=40)
    both = layer(small, large, gap=1)
    assert streams_ns(both, k40, 2, 2, launch_ns=10_000) == pytest.approx(140_000, abs=5)


def test_the_authors_log_of_lenet_is_met_on_one_and_two_streams(k40: Device) -> None:
    """Durations and idle time are the log's; how streams overlap is not."""
    told = {streams: streams_ns(LENET_LOG, k40, 64, streams) for streams in (1, 2, 3)}
    assert told[1] == pytest.approx(2.84e6, rel=0.03)
    assert told[2] == pytest.approx(1.93e6, rel=0.03)
    assert told[3] <= told[2]


def test_more_streams_than_queues_or_none_are_refused(k40: Device) -> None:
    for samples, streams in ((1, 0), (1, MOST_STREAMS + 1), (0, 1)):
        with pytest.raises(PebblerError, match="1 or more on 1 to 32"):
            streams_ns(LENET_LOG, k40, samples, streams)


def test_more_blocks_than_can_be_simulated_are_refused(k40: Device) -> None:
    with pytest.raises(PebblerError, match="100000000 samples have 2900000000 blocks"):
        streams_ns(LENET_LOG, k40, 10**8, 1)


def test_speedups_are_over_one_stream_up_to_the_kernels_at_a_time(k40: Device) -> None:
    gains = speedups(LENET_LOG, k40, 64)
    assert list(gains) == list(range(1, 33))
    assert gains[1] == 1.0
    assert speedups(LENET_LOG, k40, 64, [2]) == {2: gains[2]}


# --- the same by other means ---------------------------------------------------------------------------


@dataclass
class _Block:
    """A block in progress: its stream, needs, and how much of it is left, of one."""

    stream: int
    kernel: int
    processor: int
    left: float = 1.0


def naive_ns(some: LayerKernels, device: Device, samples: int, streams: int, launch_ns: int) -> float:
    """Every block on its own, and every rate computed anew at every event."""
    limits = execution_limits(device)
    times = [block_times(k, limits) for k in some.kernels]
    room = np.array([limits.threads, limits.blocks, limits.registers, limits.shared_bytes])
    needs = [np.array([k.threads, 1, k.block_registers, k.shared_bytes]) for k in some.kernels]
    plan: list[list[tuple[float, int]]] = [[] for _ in range(streams)]
    launched = 0
    for sample in range(samples):
        for k in some.launches:
            plan[sample % streams].append((launched * launch_ns, k))
            launched += 1
    order = {s: s for s in range(streams)}
    ended = [-math.inf] * streams
    queue: list[tuple[float, int, int, int]] = []
    active: list[_Block] = []
    busy = [False] * streams
    now = 0.0
    while any(plan) or active or queue:
        for s in range(streams):
            if plan[s] and not busy[s]:
                at = max(plan[s][0][0], ended[s] + some.t_launch_ns)
                if at <= now + SOON:
                    queue.append((at, order[s], s, some.kernels[plan[s][0][1]].blocks))
                    busy[s] = True
        queue.sort(key=lambda entry: entry[:2])
        while queue:
            at, place, s, missing = queue[0]
            k = plan[s][0][1]
            while missing:
                taken = [np.zeros(4, int) for _ in range(device.multiprocessors)]
                for block in active:
                    taken[block.processor] += needs[block.kernel]
                free = [m for m, used in enumerate(taken) if (used + needs[k] <= room).all()]
                if not free:
                    break
                active.append(_Block(s, k, min(free, key=lambda m: (taken[m][0], m))))
                missing -= 1
            queue[0] = (at, place, s, missing)
            if missing:
                break
            queue.pop(0)
        rates = []
        for block in active:
            asked = sum(
                times[b.kernel][0] / times[b.kernel][1] for b in active if b.processor == block.processor
            )
            rates.append(1 / times[block.kernel][1] / max(1.0, asked))
        ends = [now + block.left / rate for block, rate in zip(active, rates, strict=True)]
        starts = [
            max(plan[s][0][0], ended[s] + some.t_launch_ns) for s in range(streams) if plan[s] and not busy[s]
        ]
        following = min([*ends, *starts], default=now)
        for block, rate in zip(active, rates, strict=True):
            block.left -= (following - now) * rate
        over = {block.stream for block in active if block.left * times[block.kernel][1] <= SOON}
        active = [block for block in active if block.left * times[block.kernel][1] > SOON]
        now = following
        for s in over:
            if not any(b.stream == s for b in active) and not any(entry[2] == s for entry in queue):
                plan[s].pop(0)
                ended[s], busy[s] = now, False
                order[s] += streams if (len(plan[s]) % len(some.launches)) == 0 else 0
    return now


@pytest.mark.parametrize("seed", mostly_slow(range(30), range(10)))
def test_the_simulator_agrees_with_one_that_follows_every_block(seed: int) -> None:
    rng = np.random.default_rng(seed)
    device = find_device(str(rng.choice(["K40", "TitanXp"])))
    kernels = []
    for i in range(rng.integers(1, 4)):
        duration = int(rng.integers(5_000, 90_000))
        kernels.append(
            Kernel(
                name=f"k{i}",
                grid=(int(rng.integers(1, 60)), 1, 1),
                block=(int(rng.choice([64, 256, 512, 1000])), 1, 1),
                shared_bytes=int(rng.choice([0, 8448, 30_000])),
                registers=int(rng.integers(16, 64)),
                duration_ns=duration,
                invocations=int(rng.integers(1, 3)),
                work_ns=int(rng.integers(1, duration)) if rng.random() < 0.5 else None,
            )
        )
    some = layer(*kernels, gap=int(rng.integers(1, 4000)))
    samples, streams = int(rng.integers(1, 6)), int(rng.integers(1, 5))
    launch = int(rng.integers(0, 12_000))
    assert streams_ns(some, device, samples, streams, launch) == pytest.approx(
        naive_ns(some, device, samples, streams, launch), abs=2
    )


@pytest.mark.parametrize("streams", [1, 2, 5, 32])
def test_nothing_is_faster_than_its_work(streams: int) -> None:
    for name in ("K40", "A100"):
        device = find_device(name)
        for row in TABLE_5[:3]:
            kernels = caffe_kernels(device, row.conv, "forward")
            work = sum(k.blocks * (k.work_ns or 0) for k in kernels.kernels) / device.multiprocessors
            assert streams_ns(kernels, device, 40, streams) >= 40 * work
