"""Steps of G10, from a config and a list of kernels made by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from pebbler.instances.errors import PebblerError
from pebbler.instances.foreign.g10 import Weights, instance_of_config
from pebbler.instances.foreign.read import read_foreign
from pebbler.instances.instance import Instance
from pebbler.instances.memory import ideal_ns, with_budget
from pebbler.solver.exhaustive.brute_force import brute_force
from pebbler.validate.check import check

PAGE = 2**21
FILES = Path(__file__).parents[2] / "data" / "g10"
"""A config and a list of kernels: a machine whose memory has six pages of 2 MiB, each copied in 1 us."""
CONFIG = (FILES / "small.config").read_text(encoding="utf-8")
KERNELS = (FILES / "statistics" / "kernels.config").read_text(encoding="utf-8").splitlines()


def line(tensor: int, size: int) -> str:
    return f"tensor{tensor} Is weight (global)?: 0, Size in byte: {size}, Range:0--1"


def put(tmp_path: Path, config: str = CONFIG, kernels: Sequence[str] = KERNELS) -> Path:
    """Lay a config and what gpg makes of it where G10 has them, and return the config."""
    config = config.replace("output_folder           .", "output_folder ../results/Small/8-best")
    written = tmp_path / "results" / "Small" / "8-best" / "statistics" / "kernels.config"
    written.parent.mkdir(parents=True)
    written.write_text("".join(f"{text}\n" for text in kernels))
    path = tmp_path / "src" / "configs" / "Small" / "8-best.config"
    path.parent.mkdir(parents=True)
    path.write_text(config)
    return path


def made(path: Path, weights: Weights) -> Instance:
    return instance_of_config(path.read_bytes(), path, weights)


def test_a_step_on_the_machine_of_its_config(tmp_path: Path) -> None:
    instance = read_foreign(put(tmp_path))
    assert instance.name == "Small-8"
    assert (instance.budget_bytes // PAGE, instance.host_budget_bytes) == (6, 2 * 2**30)
    assert (instance.engines, instance.alignment_bytes) == ("duplex", 4096)
    assert {block.name: block.bytes // PAGE for block in instance.blocks} == {
        "tensor1": 1,
        "tensor90": 2,
        "tensor2": 2,
        "tensor4": 1,
        "tensor3": 2,
    }
    assert [block.offload_ns for block in instance.blocks] == [1000, 2000, 2000, 1000, 2000]
    assert [block.prefetch_ns for block in instance.blocks] == [1000, 2000, 2000, 1000, 2000]
    assert [task.name for task in instance.tasks] == ["0 Load", "1 Conv", "2 Mask", "3 Back"]
    assert [task.algorithms[0].duration_ns for task in instance.tasks] == [2000, 10000, 1000, 5000]
    assert [task.algorithms[0].workspace_bytes // PAGE for task in instance.tasks] == [0, 1, 0, 0]


def test_what_tasks_do_to_blocks(tmp_path: Path) -> None:
    """tensor4 is read before anything writes it, and allocated there; the last kernel rewrites a weight."""
    instance = read_foreign(put(tmp_path))
    touched = [
        [[instance.blocks[b].name for b in blocks] for blocks in (task.inputs, task.outputs, task.updates)]
        for task in instance.tasks
    ]
    assert touched == [
        [[], ["tensor1"], []],
        [["tensor90", "tensor1"], ["tensor2"], []],
        [["tensor2"], ["tensor4", "tensor3"], []],
        [["tensor3", "tensor4", "tensor1"], [], ["tensor90"]],
    ]


@pytest.mark.parametrize(
    ("weights", "places", "pages", "makespan"),
    [
        ("carried", ("carried", "anywhere"), 8, 18000),
        ("host", ("host", "host"), 6, 18000 + 2000 + 2000),
        ("allocated", ("absent", "anywhere"), 8, 18000),
        ("allocated", ("absent", "anywhere"), 6, 18000 + 2000 + 2000),
    ],
)
def test_weights_at_both_ends(
    weights: Weights, places: tuple[str, str], pages: int, makespan: int, tmp_path: Path
) -> None:
    """With six pages the weight leaves for tensor3 and comes back; the host has it, or must get it first."""
    instance = with_budget(made(put(tmp_path), weights), pages * PAGE)
    block = next(block for block in instance.blocks if block.name == "tensor90")
    assert (block.initially, block.finally_) == places
    assert ideal_ns(instance) == 18000
    schedule = brute_force(instance)
    assert schedule is not None
    assert check(instance, schedule).valid
    assert schedule.makespan_ns == makespan


def test_memory_as_gigabytes_and_the_link_of_the_slower_side(tmp_path: Path) -> None:
    config = CONFIG.replace("0.01171875", "40").replace("line_GB      2", "line_GB      0")
    instance = read_foreign(put(tmp_path, config.replace("Bps 4194.304", "Bps 1048.576")))
    assert (instance.budget_bytes, instance.host_budget_bytes) == (40 * 2**30, 0)
    assert instance.blocks[0].offload_ns == 2000


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("GPU_frequency_GHz       1.2", "", "is no config of G10: it has no line 'GPU_frequency_GHz'"),
        ("batch_size              8", "batch_size", "it has no line 'batch_size'"),
        ("Bps 4194.304", "Bps fast", "GPU_PCIe_bandwidth_GBps is 'fast', which is no number from 1e-06"),
        ("Bps 4194.304", "Bps 0", "GPU_PCIe_bandwidth_GBps is '0'"),
        ("GHz       1.2", "GHz       nan", "GPU_frequency_GHz is 'nan'"),
        ("line_GB      2", "line_GB      -1", "CPU_memory_line_GB is '-1', which is no number from 0"),
        ("line_GB      2", "line_GB      1e300", "CPU_memory_line_GB is '1e300'"),
        (
            "output_folder           .",
            "output_folder ..",
            "in which there is no statistics/kernels.config; run gpg",
        ),
    ],
)
def test_a_bad_config_is_refused(old: str, new: str, told: str, tmp_path: Path) -> None:
    assert old in CONFIG
    path = put(tmp_path, CONFIG.replace(old, new))
    with pytest.raises(PebblerError) as caught:
        read_foreign(path)
    assert told in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def changed(place: int, text: str) -> Callable[[], list[str]]:
    return lambda: [*KERNELS[:place], text, *KERNELS[place + 1 :]]


@pytest.mark.parametrize(
    ("kernels", "told"),
    [
        (list, "it is empty"),
        (lambda: KERNELS[:-1], "what begins at line 28 is no whole kernel"),
        (lambda: KERNELS[:4], "what begins at line 1 is no whole kernel"),
        (lambda: KERNELS[8:], "line 1 has kernel 1 in place of 0"),
        (lambda: ["", *KERNELS], "what begins at line 1 is no whole kernel"),
        (changed(2, "Execution Time: -5"), "what begins at line 1 is no whole kernel"),
        (changed(15, line(5, 2**53 + 1)), "'workspace_bytes'"),
        (changed(6, "tensor1 Is weight"), "'tensor1 Is weight' is no line of a tensor"),
        (changed(6, line(1, 7 * PAGE)), "tensor1 is not of one size, or not always a weight"),
        (changed(6, line(1, 10**16)), "is no line of a tensor"),
    ],
)
def test_a_bad_list_of_kernels_is_refused(
    kernels: Callable[[], list[str]], told: str, tmp_path: Path
) -> None:
    path = put(tmp_path, kernels=kernels())
    with pytest.raises(PebblerError) as caught:
        read_foreign(path)
    assert told in str(caught.value)
    assert "is no list of kernels that gpg has written" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_kernels_in_place_of_their_config_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "kernels.config"
    path.write_text("\n".join(KERNELS))
    with pytest.raises(PebblerError, match="has G10's kernels, but no memory and no link; give the config"):
        read_foreign(path)


@pytest.mark.parametrize("name", ["config", "kernels"])
def test_bytes_that_are_no_text(name: str, tmp_path: Path) -> None:
    path = put(tmp_path)
    bad = path if name == "config" else tmp_path / "results/Small/8-best/statistics/kernels.config"
    bad.write_bytes(bad.read_bytes() + b"\xff")
    with pytest.raises(PebblerError, match="can't decode byte 0xff") as caught:
        read_foreign(path)
    assert str(bad) in str(caught.value)
