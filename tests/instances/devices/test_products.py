"""Matrix products: which tile one gets, and how near its time is to measured ones."""

from __future__ import annotations

import dataclasses
from itertools import groupby
from pathlib import Path
from statistics import median

import timings
from pebbler.instances.devices.device import find_device
from pebbler.instances.devices.kernels import LATENCY_CYCLES
from pebbler.instances.devices.occupancy import execution_limits
from pebbler.instances.devices.products import Tile, product_kernel, product_tiles, tiled_kernel

P100 = find_device("P100")
DATA = Path(__file__).parents[3] / timings.DATA


def test_a_product_gets_the_tile_that_takes_the_least_time() -> None:
    """Small: 25 blocks of 32 x 32 keep more of 56 multiprocessors busy than 4 of 128 x 128."""
    assert product_kernel(P100, "p", "nn", 160, 160, 400).blocks == 5 * 5
    assert product_kernel(P100, "p", "nn", 7680, 7680, 2048).blocks == 60 * 60
    for rows, columns in ((160, 160), (7680, 7680), (3025, 96), (169, 384)):
        chosen = product_kernel(P100, "p", "nn", rows, columns, 576)
        for tile in product_tiles("pascal", "nn"):
            assert chosen.duration_ns <= tiled_kernel(P100, "p", tile, rows, columns, 576).duration_ns


def test_of_equals_the_largest_is_taken() -> None:
    """All tiles have one block here, and a latency longer than their work."""
    slow = find_device("K40")
    (first, *others) = product_tiles("kepler", "nt")
    assert others
    one = product_kernel(slow, "p", "nt", 8, 8, 1)
    assert (one.threads, one.shared_bytes) == (first.threads, first.shared_bytes)


def test_a_tile_loads_and_computes_all_of_its_blocks() -> None:
    """Two blocks of 64 x 64 for a result of 65 x 10: a share of the device for each, or its latencies."""
    tile, limits = Tile(64, 64, 8, 64, 2), execution_limits(P100)
    deep = tiled_kernel(P100, "p", tile, 65, 10, 8000)
    seconds = P100.memory_seconds(4 * (2 * (64 + 64) * 8000 + 65 * 10)) * limits.multiprocessors / 2
    assert deep.blocks == 2
    assert deep.work_ns == deep.duration_ns == round(seconds * 1e9)
    quick = dataclasses.replace(P100, bandwidth=1000 * P100.bandwidth)
    flops = 2 * 64 * 64 * 8000 / (P100.peak_flops * P100.gemm_efficiency) * limits.multiprocessors
    latencies = 8000 / 8 * LATENCY_CYCLES / limits.clock_hz
    kernel = tiled_kernel(quick, "p", tile, 65, 10, 8000)
    assert (kernel.work_ns, kernel.duration_ns) == (round(flops * 1e9), round(max(flops, latencies) * 1e9))
    assert latencies < flops
    slow = tiled_kernel(quick, "p", Tile(64, 64, 4, 64, 2), 65, 10, 8000)
    assert (slow.work_ns, slow.duration_ns) == (kernel.work_ns, round(2 * latencies * 1e9))


def test_kepler_has_the_kernel_that_the_authors_profiled() -> None:
    (tile,) = product_tiles("kepler", "nn")
    assert (tile.rows, tile.columns, tile.threads, tile.registers) == (64, 64, 256, 71)
    assert tile.shared_bytes + 276 == 8468


def test_the_tile_chosen_is_nearer_to_measured_products_than_one_tile() -> None:
    """DeepBench's products with few rows or columns, none of which any constant here was fitted to."""
    few = [
        timing
        for timing in timings.layers(DATA)
        if isinstance(timing.shape, timings.Product)
        and min(timing.shape.rows, timing.shape.columns) <= 128
        and timing.shape.depth <= 4096
    ]
    for name, some in groupby(sorted(few, key=lambda timing: timing.device), key=lambda t: t.device):
        if name not in ("P100", "V100"):
            continue
        device = find_device(name)
        chosen, fixed = [], []
        for timing in some:
            shape = timing.shape
            assert isinstance(shape, timings.Product)
            sides = shape.rows, shape.columns, shape.depth
            ns = timing.ms * 1e6
            chosen.append(product_kernel(device, "p", "nn", *sides).duration_ns / ns)
            fixed.append(tiled_kernel(device, "p", Tile(128, 64, 8, 128, 2), *sides).duration_ns / ns)
        assert len(chosen) > 50
        assert 0.8 < median(chosen) < 1.5 < median(fixed)
