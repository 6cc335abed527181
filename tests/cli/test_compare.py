"""What ``compare`` prints for people: it fits, explains itself and says what to do next."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from pebbler.cli.compare import in_lines
from pebbler.cli.main import main
from pebbler.heuristics.methods import Method
from pebbler.instances.files import read_instance
from pebbler.instances.instance import Link

from ..samples import mostly_slow

Toys = Callable[..., None]


pytestmark = pytest.mark.usefixtures("elsewhere", "unrendered")


@pytest.mark.parametrize("width", [60, 100, 200])
def test_the_text_fits_the_line_with_every_figure(
    width: int,
    file: Path,
    toys: Toys,
    keep: Method,
    swap: Method,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    toys(keep=keep, swap=swap)
    monkeypatch.setenv("COLUMNS", str(width))
    assert main(["compare", str(file)]) == 0
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= width
    for figure in ("10.500 ms", "110.00%", "4.00 MiB", "0.00 GB"):
        assert re.search(rf"(^|\s){re.escape(figure)}(\s|$)", printed), figure
    assert "no place for block 'D'" in " ".join(printed.split())
    assert "\x1b" not in printed


def test_folders_that_do_not_print_are_escaped_and_quoted_for_a_shell(
    file: Path, toys: Toys, keep: Method, swap: Method, capsys: pytest.CaptureFixture[str]
) -> None:
    toys(keep=keep, swap=swap)
    folder = "\x1b[31m it's \udcff"
    assert main(["compare", str(file), "--out", folder]) == 0
    printed, _, told = capsys.readouterr().out.partition("\nnext:\n")
    assert r"\x1b[31m it's \udcff" in printed
    assert all(line.isprintable() for line in [*printed.splitlines(), *told.splitlines()])
    command = told.replace(" \\\n", " ").splitlines()[0]
    words = subprocess.run(
        ["bash", "-c", f"printf '%s\\0' {command}"], capture_output=True, check=True
    ).stdout
    assert os.fsdecode(words.split(b"\0")[2]).startswith(folder)


def test_what_comes_next_are_true_commands(
    file: Path, toys: Toys, keep: Method, swap: Method, capsys: pytest.CaptureFixture[str]
) -> None:
    toys(keep=keep, swap=swap, flow=swap)
    assert main(["compare", str(file), "--out", "the out folder"]) == 0
    _, _, told = capsys.readouterr().out.partition("\nnext:\n")
    commands = [shlex.split(line) for line in told.replace(" \\\n", " ").splitlines()]
    assert [command[:2] for command in commands] == [
        ["pebbler", "check"],
        ["pebbler", "trace"],
        ["pebbler", "solve"],
    ]
    for _, *arguments in commands:
        assert main(arguments) == 0, arguments
    assert Path("the out folder/chain-b4.swap.trace.json").exists()
    assert Path("the out folder/chain-b4.better.schedule.json").exists()


def test_without_a_schedule_nothing_comes_next(
    file: Path, toys: Toys, keep: Method, capsys: pytest.CaptureFixture[str]
) -> None:
    toys(keep=keep)
    assert main(["compare", str(file)]) == 1
    printed = capsys.readouterr().out
    assert printed.startswith("no schedule:  keep: no place for block 'D'")
    assert "next:" not in printed


@pytest.mark.parametrize("width", range(1, 90))
def test_a_command_in_lines_is_the_same_command(width: int) -> None:
    words = ["pebbler", "solve", "a b.json", "--method", "flow", "-o", "it's.json"]
    lines = in_lines(words, width)
    echoed = subprocess.run(
        ["bash", "-c", f"printf '%s\\n' {lines}"], capture_output=True, text=True, check=True
    )
    assert echoed.stdout.splitlines() == words
    if width >= 40:
        assert max(map(len, lines.splitlines())) <= width


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "give a command, such as pebbler compare vgg16"),
        (["compar", "vgg16"], "there is no command 'compar'; did you mean compare"),
        (["zzz"], "there is no command 'zzz'; there are compare, fits, instance, "),
        (["compare", "resnet"], "or did you mean resnet18, resnet34, resnet50"),
        (["compare", "VGG16"], "there is no network 'VGG16'; close names: vgg16"),
        (["compare", "vgg16", "--device", "rtx4099"], "'rtx4099' is not a known device; try RTX4090, "),
        (["instance", "lenet", "--link", "25G", "-o", "i.json"], "the bytes of a second as 25GB"),
        (["compare"], "such as pebbler compare vgg16 --batch 256 --device k40 --budget 12GiB"),
        (["frontier", "--method", "flow", "-o", "f"], "such as pebbler frontier vgg16"),
        (["instance", "-o", "i.json"], "such as pebbler instance vgg16"),
    ],
)
def test_what_is_wrong_is_named_with_what_is_near(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert told in line


@pytest.mark.parametrize("written", mostly_slow(["12G", "12gib", "12GiB", "12 GiB"], ["12 GiB"]))
def test_sizes_and_times_are_read_as_people_write_them(written: str, toys: Toys, keep: Method) -> None:
    toys(keep=keep)
    assert main(["compare", "lenet", "--budget", written, "--time-limit", "5m"]) == 0
    (file,) = Path("pebbler-out").glob("*.instance.json")
    assert read_instance(file).budget_bytes == 12 * 2**30


@pytest.mark.parametrize("source", ["lenet", "lenet.instance.json"])
def test_a_link_may_be_named_beside_a_network_and_a_file(source: str) -> None:
    budget = ("--budget", "1.05xMmin")
    assert main(["instance", "lenet", *budget, "-o", "lenet.instance.json"]) == 0
    assert main(["compare", source, *budget, "--link", "1GB/s,2GB/s", "--methods", "modnn"]) == 0
    made = read_instance("pebbler-out/lenet-b64.instance.json")
    assert [transform.word for transform in made.applied] == ["link=1GB/s,2GB/s"]
    plain = read_instance("lenet.instance.json").blocks
    assert made.blocks[0].offload_ns != plain[0].offload_ns


def test_several_gpus_have_the_link_of_their_device(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "lenet", "--gpus", "2", "--link", "pcie4"]) == 2
    assert "leave --link out" in capsys.readouterr().err


@pytest.mark.parametrize("source", ["lenet", "lenet.instance.json"])
def test_both_directions_may_share_a_link_of_a_network_and_of_a_file(source: str) -> None:
    budget = ("--budget", "1.05xMmin")
    assert main(["instance", "lenet", *budget, "-o", "lenet.instance.json"]) == 0
    assert main(["compare", source, *budget, "--link-both", "14GB/s", "--methods", "network-wide"]) in (0, 1)
    made = read_instance("pebbler-out/lenet-b64.instance.json")
    assert made.link == Link(both_bytes_per_second=14 * 10**9)
    assert made.blocks == read_instance("lenet.instance.json").blocks


def test_what_is_measured_is_of_a_device_or_a_profile(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["instance", "lenet", "--link-both", "measured", "-o", "i.json"]
    assert main([*asked, "--device", "a100"]) == 0
    assert read_instance("i.json").link == Link(both_bytes_per_second=36_500_000_000)
    assert main([*asked, "--device", "k40"]) == 2
    assert "not measured for K40" in capsys.readouterr().err
    assert main(["compare", "i.json", "--link-both", "measured"]) == 2
    assert "a file has no link that was measured" in capsys.readouterr().err
    assert main(["compare", "lenet", "--gpus", "2", "--link-both", "9GB/s"]) == 2
    assert "give --bus in place of --link-both" in capsys.readouterr().err


def test_an_optimizer_may_run_on_the_host() -> None:
    asked = ["instance", "lenet", "--steady", "--optimizer", "adamw", "-o", "i.json"]
    assert main([*asked, "--optimizer-on", "choose", "--host-bandwidth", "50GB/s"]) == 0
    updates = [task for task in read_instance("i.json").tasks if task.name.startswith("OPT(")]
    assert {tuple(one.on for one in task.algorithms) for task in updates} == {("device", "host")}


def test_host_memory_is_a_budget_of_its_own(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    vgg = ["compare", "vgg16", "--batch", "64", "--budget", "1.1xMmin", "--methods", "modnn"]
    assert main([*vgg, "--host-memory", "2GiB", "--out", "plenty"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "host memory: 2.00 GiB for copies; nothing works with less than 1.46 GiB" in printed
    assert "host memory is unlimited" not in printed
    assert main([*vgg, "--host-memory", "1KiB", "--out", "nothing"]) == 1
    assert "more than device and host memory have together" in " ".join(capsys.readouterr().out.split())
    assert main(["compare", str(file), "--host-memory", "1GiB", "--methods", "modnn", "--out", "file"]) == 0
    instance = read_instance(next(Path("file").glob("*.instance.json")))
    assert instance.host_budget_bytes == 2**30


@pytest.mark.parametrize("size", ["x", "12 parsecs", "-1GiB"])
def test_host_memory_that_is_no_size_is_refused(size: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "lenet", f"--host-memory={size}"]) == 2
    assert "host memory; write it as 64GiB" in capsys.readouterr().err


def test_several_gpus_have_no_host_memory_of_their_own_yet(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "lenet", "--gpus", "2", "--host-memory", "1GiB", "--methods", "modnn"]) == 2
    assert "host memory of several GPUs has no budget yet" in capsys.readouterr().err
