"""Kernels: files, records of CUPTI, how many blocks fit, and how long a kernel alone takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pebbler.instances.devices.device import find_device
from pebbler.instances.devices.kernels import Kernel, alone_ns, read_kernels, resident_blocks
from pebbler.instances.devices.occupancy import execution_limits
from pebbler.instances.errors import FormatError, PebblerError

K40 = execution_limits(find_device("K40"))
SGEMM = Kernel(
    name="sgemm", grid=(3, 16, 1), block=(16, 16, 1), shared_bytes=8448, registers=70, duration_ns=110_000
)
ENTRY: dict[str, Any] = {
    "name": "sgemm",
    "grid": [48, 1, 1],
    "block": [256, 1, 1],
    "shared_bytes": 8448,
    "registers": 70,
    "duration_ns": 110_000,
}


def record(start: int, end: int, **changes: Any) -> dict[str, Any]:
    extents = {f"{what}{axis}": 1 for what in ("grid", "block") for axis in "XYZ"}
    return {
        "name": "im2col",
        **extents,
        "gridX": 18,
        "blockX": 512,
        "staticSharedMemory": 16,
        "dynamicSharedMemory": 4,
        "registersPerThread": 33,
        "start": start,
        "end": end,
        "streamId": 7,
        **changes,
    }


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def put(document: object) -> Path:
        path = tmp_path / "layer.json"
        path.write_text(document if isinstance(document, str) else json.dumps(document), encoding="utf-8")
        return path

    return put


def test_a_kernel_counts_blocks_threads_warps_and_registers() -> None:
    assert (SGEMM.blocks, SGEMM.threads, SGEMM.warps) == (48, 256, 8)
    assert SGEMM.block_registers == 8 * 2304  # 70 x 32 = 2240, in units of 256


@pytest.mark.parametrize(
    ("changes", "blocks"),
    [
        ({}, 3),  # registers: 65536 / 18432
        ({"registers": 32}, 5),  # shared memory: 49152 / 8448
        ({"registers": 32, "shared_bytes": 0}, 8),  # threads: 2048 / 256
        ({"registers": 32, "shared_bytes": 0, "block": (32, 1, 1)}, 16),  # blocks of a K40
    ],
)
def test_the_scarcest_resource_limits_resident_blocks(changes: dict[str, Any], blocks: int) -> None:
    assert resident_blocks(msgspec.structs.replace(SGEMM, **changes), K40) == blocks


def test_a_block_that_does_not_fit_is_refused_with_what_it_lacks() -> None:
    large = msgspec.structs.replace(SGEMM, shared_bytes=50_000)
    with pytest.raises(
        PebblerError, match="needs 50000 bytes of shared memory, but a multiprocessor has 49152"
    ):
        resident_blocks(large, K40)


def test_a_kernel_alone_takes_its_waves_one_after_the_other() -> None:
    """Of 48 blocks on 15 multiprocessors one gets 4: a wave of 3, and one block that cannot fill it."""
    assert alone_ns(10.0, 25.0, 48, 3, 15) == 3 * 10.0 + 25.0
    assert alone_ns(10.0, 10.0, 48, 3, 15) == 4 * 10.0
    assert alone_ns(10.0, 45.0, 45, 3, 15) == 45.0


def test_kernels_are_read_from_a_file(write: Any) -> None:
    layer = read_kernels(
        write({"t_launch_ns": 5000, "kernels": [{**ENTRY, "invocations": 2}, {**ENTRY, "name": "b"}]})
    )
    assert layer.t_launch_ns == 5000
    assert layer.kernels[0] == Kernel(**{**ENTRY, "grid": (48, 1, 1), "block": (256, 1, 1), "invocations": 2})
    assert layer.launches == (0, 0, 1)


def test_records_of_one_configuration_become_one_kernel(write: Any) -> None:
    records = [record(500, 610, blockX=256), record(0, 100), record(120, 260), record(300, 400, name="bias")]
    layer = read_kernels(write({"records": records}))
    told = [(k.name, k.duration_ns, k.invocations, k.shared_bytes) for k in layer.kernels]
    assert told == [("im2col", 120, 2, 20), ("bias", 100, 1, 20), ("im2col#2", 110, 1, 20)]
    assert layer.t_launch_ns == round((20 + 40 + 100) / 3)


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ("", "truncated"),
        ('{"t_launch_ns": 5', "truncated"),
        ({"t_launch_ns": 5000, "kernels": []}, "kernels: there is none"),
        ({"kernels": [ENTRY]}, "'t_launch_ns' is missing"),
        ({"t_launch_ns": 5000}, "either 'kernels' or 'records'"),
        ({"t_launch_ns": 5000, "kernels": [ENTRY, ENTRY]}, "'sgemm' is there twice"),
        ({"t_launch_ns": 5000, "kernels": [{**ENTRY, "ilp": 2}]}, "unknown field `ilp`"),
        ({"t_launch_ns": 5000, "kernels": [{**ENTRY, "duration_ns": 0}]}, r"kernels\[0\].duration_ns"),
        (
            {"t_launch_ns": 5000, "kernels": [{**ENTRY, "block": [64, 32, 1]}]},
            "2048 threads, and 1024 is the most",
        ),
        ({"t_launch_ns": 5, "kernels": [{**ENTRY, "grid": [9**9, 9**9, 1]}]}, "10000000 is the most"),
        ({"t_launch_ns": 5, "kernels": [{**ENTRY, "invocations": 10**12}]}, "invocations"),
        ({"records": []}, "records: there is none"),
        ({"records": [record(0, 5)]}, "give 't_launch_ns' too"),
        ({"records": [record(5, 5), record(6, 7)]}, "ends at 5, not after its start"),
    ],
)
def test_a_bad_file_is_refused_with_the_place(write: Any, document: object, said: str) -> None:
    with pytest.raises(FormatError, match=said) as error:
        read_kernels(write(document))
    assert "layer.json is not a file of kernels" in str(error.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(PebblerError, match=r"none\.json cannot be read"):
        read_kernels(tmp_path / "none.json")


def test_ten_thousand_kernels_are_refused_at_once(tmp_path: Path) -> None:
    kernel = {"grid": [1, 1, 1], "block": [32, 1, 1], "shared_bytes": 0, "registers": 1, "duration_ns": 1}
    path = tmp_path / "k.json"
    path.write_text(
        json.dumps({"t_launch_ns": 1, "kernels": [kernel | {"name": str(i)} for i in range(10_000)]})
    )
    with pytest.raises(FormatError, match="there are 10000, and 1000 are the most"):
        read_kernels(path)


def test_a_name_that_does_not_print_is_refused(tmp_path: Path) -> None:
    kernel = {"grid": [1, 1, 1], "block": [32, 1, 1], "shared_bytes": 0, "registers": 1, "duration_ns": 1}
    path = tmp_path / "k.json"
    path.write_text(json.dumps({"t_launch_ns": 1, "kernels": [kernel | {"name": "a\x1b[31m"}]}))
    with pytest.raises(FormatError, match="do not print"):
        read_kernels(path)
