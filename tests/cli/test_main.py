from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pebbler.cli.main import main
from pebbler.heuristics.methods import Answer, Limits, Method, MethodInfo, temporary_methods
from pebbler.heuristics.parts import with_parts
from pebbler.instances.files import read_instance, sha256_of
from pebbler.instances.instance import Instance
from pebbler.instances.memory import unlimited_peak
from pebbler.instances.networks import zoo
from pebbler.instances.networks.zoo import list_networks
from pebbler.instances.profile import CopyTimes, Machine, Profile, TaskTimes, write_profile
from pebbler.instances.transforms import in_parts
from pebbler.instances.workload import Workload
from pebbler.validate.schedule import read_schedule

from .refusals import refusal

Toys = Callable[..., None]
MIB = 2**20
COMMANDS = [
    "compare",
    "fits",
    "instance",
    "suite",
    "generate",
    "best-known",
    "solve",
    "bound",
    "check",
    "check-bound",
    "check-trace",
    "trace",
    "profile",
    "run",
    "policy",
    "pack",
    "streams",
    "frontier",
    "bench",
    "report",
    "networks",
    "devices",
    "methods",
    "schemas",
]


pytestmark = pytest.mark.usefixtures("elsewhere", "unrendered")


@pytest.fixture
def schedule_file(file: Path, toys: Toys, keep: Method, swap: Method) -> Path:
    toys(keep=keep, swap=swap)
    assert main(["solve", str(file), "--method", "swap", "-o", "s.schedule.json"]) == 0
    return file.parent / "s.schedule.json"


def run(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pebbler", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, **options)


def edit(file: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """Change a JSON file and return the path of the changed copy."""
    document = json.loads(file.read_text())
    change(document)
    copy = file.with_name("changed.json")
    copy.write_text(json.dumps(document))
    return copy


# --- the program --------------------------------------------------------------------------------------


def test_the_command_line_imports_nothing_slow() -> None:
    code = (
        "import sys, pebbler.cli.main; "
        "print([m for m in ('numpy', 'matplotlib', 'networkx', 'ortools', 'msgspec') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_help_and_version() -> None:
    done = run("--help")
    assert done.returncode == 0
    assert set(COMMANDS) <= set(re.findall(r"^    (\S+)", done.stdout, re.MULTILINE))
    assert run("--version").stdout == f"pebbler {version('pebbler')}\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main([command, "--help"])
    assert end.value.code == 0
    text = capsys.readouterr().out
    assert f"example: pebbler {command}" in text
    assert "--json" in text


@pytest.mark.parametrize(
    ("arguments", "statuses"),
    # argparse passes over a failed write, which is when it fails where the output is not buffered.
    [(["networks", "lenet", "--json"], {141}), (["--help"], {0, 141})],
)
def test_a_reader_that_leaves_is_no_error(arguments: list[str], statuses: set[int]) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "pebbler", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(30) in statuses


def test_wrong_usage_is_one_sentence_and_status_2() -> None:
    for arguments in ([], ["no-such-command"], ["solve"], ["compare", "lenet", "--memory", "divisible"]):
        done = run(*arguments)
        assert (done.returncode, done.stdout) == (2, "")
        assert len(done.stderr.splitlines()) == 1, done.stderr


# --- the way through the house ------------------------------------------------------------------------


def test_compare_a_network(toys: Toys, keep: Method, capsys: pytest.CaptureFixture[str]) -> None:
    toys(keep=keep)
    assert main(["compare", "lenet", "--batch", "10", "--sub-batch", "4", "--budget", "1GiB", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["instance"]["rounds"] == 3
    (result,) = document["results"]
    assert (result["method"], result["sub_batch"], result["rounds"]) == ("keep", 4, 3)
    assert {path.name for path in Path("pebbler-out").iterdir()} == {
        "lenet-b4.instance.json",
        "lenet-b4.keep.schedule.json",
        "lenet-b4.keep.png",
        "lenet-b4.png",
        "lenet-b2.instance.json",
        "lenet-b2.keep.schedule.json",
        "lenet-b2.keep.png",
    }


@pytest.mark.parametrize(
    ("network", "memory"),
    [
        ("lenet", "contiguous"),
        pytest.param("alexnet", "contiguous", marks=pytest.mark.slow),
        pytest.param("alexnet", "paged", marks=pytest.mark.slow),
    ],
)
def test_schedules_of_the_real_methods_pass_the_checker(
    network: str, memory: str, capsys: pytest.CaptureFixture[str]
) -> None:
    compared = ["compare", network, "--batch", "16", "--sub-batch", "6", "--budget", "2xMmin"]
    assert main([*compared, "--memory", memory, "--time-limit", "0.1s", "--out", "out", "--json"]) == 0
    found = [r["method"] for r in json.loads(capsys.readouterr().out)["results"] if r["iteration_ns"]]
    assert "vdnn-all-m" in found
    for name in (f"{network}-b6", f"{network}-b4"):
        for method in found:
            assert main(["check", f"out/{name}.instance.json", f"out/{name}.{method}.schedule.json"]) == 0
            assert capsys.readouterr().out == "valid\n"


def test_compare_a_file_under_another_budget(
    file: Path, toys: Toys, keep: Method, swap: Method, capsys: pytest.CaptureFixture[str]
) -> None:
    toys(keep=keep, swap=swap)
    assert main(["compare", str(file), "--budget", "1.5xMmin", "--methods", "swap", "--out", "a/b"]) == 0
    printed = capsys.readouterr()
    assert "keep" not in printed.out
    assert printed.err == ""
    assert read_instance("a/b/chain-b4.instance.json").budget_bytes == 6 * MIB


def test_compare_without_any_schedule_says_no(
    file: Path, toys: Toys, keep: Method, capsys: pytest.CaptureFixture[str]
) -> None:
    toys(keep=keep)
    assert main(["compare", str(file), "--verbose"]) == 1
    printed = capsys.readouterr()
    assert "no place for block" in printed.out
    assert printed.err.startswith("keep: no schedule: no place")


def test_compare_is_loud_about_an_invalid_schedule(
    file: Path, toys: Toys, swap: Method, capsys: pytest.CaptureFixture[str]
) -> None:
    def lie(instance: Instance, limits: Limits) -> Answer:
        schedule = swap(instance, limits).schedule
        assert schedule is not None
        return Answer(msgspec.structs.replace(schedule, peak_bytes=0))

    toys(lie=lie, swap=swap)
    assert main(["compare", str(file)]) == 0
    assert "method lie failed" in capsys.readouterr().err
    assert not Path("pebbler-out/chain-b4.lie.schedule.json").exists()
    toys(lie=lie)
    assert main(["compare", str(file)]) == 3


def test_compare_keeps_what_is_done_when_it_is_interrupted(
    file: Path, toys: Toys, swap: Method, capsys: pytest.CaptureFixture[str]
) -> None:
    def press(_: Instance, __: Limits) -> Answer:
        signal.raise_signal(signal.SIGINT)
        raise AssertionError("not reached")

    toys(swap=swap, press=press)
    assert main(["compare", str(file)]) == 130
    printed = capsys.readouterr()
    assert "swap" in printed.out
    assert printed.err == "pebbler: interrupted\n"
    assert Path("pebbler-out/chain-b4.swap.schedule.json").exists()


def test_instance_writes_what_the_workload_gives(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = "instance lenet --batch 8 --device V100 --budget 90% --engines single --graph paper"
    assert main([*arguments.split(), "-o", "x.json", "--json"]) == 0
    expected = Workload("lenet", 8, "V100", "paper", "single").instance("90%")
    assert read_instance("x.json") == expected
    assert json.loads(capsys.readouterr().out)["sha256"] == sha256_of("x.json")


def test_instance_says_that_a_smaller_last_round_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["instance", "lenet", "--batch", "10", "--sub-batch", "4", "-o", "x.json"]) == 0
    assert "the last round has 2 images" in capsys.readouterr().err
    assert read_instance("x.json").rounds == 2


def test_solve_ties_the_schedule_to_its_file(
    file: Path, schedule_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    schedule = read_schedule(schedule_file, read_instance(file))
    assert schedule.instance_sha256 == sha256_of(file)
    again = ["solve", str(file), "--method", "swap", "-o", "again.json"]
    assert main(again) == 0
    assert "10.500 ms" in capsys.readouterr().out
    assert main([*again, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["makespan_ns"] == schedule.makespan_ns
    assert Path("again.json").read_bytes() == schedule_file.read_bytes()


def test_solve_passes_limits_and_a_warm_start(
    file: Path, schedule_file: Path, toys: Toys, swap: Method
) -> None:
    seen: list[Limits] = []

    def spy(instance: Instance, limits: Limits) -> Answer:
        seen.append(limits)
        return swap(instance, limits)

    toys(spy=spy)
    options = "--method spy --time-limit 5min --seed 3 --workers 2 -o o.json --warm-start"
    assert main(["solve", str(file), *options.split(), str(schedule_file)]) == 0
    start = read_schedule(schedule_file, read_instance(file))
    assert seen == [Limits(time_limit=300.0, seed=3, workers=2, warm_start=start)]


def test_solve_leaves_rules_out(file: Path, swap: Method, capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[Limits] = []

    def spy(instance: Instance, limits: Limits) -> Answer:
        seen.append(limits)
        return swap(instance, limits)

    entry = MethodInfo("spy", "a toy", "tests", spy, rules=("haste", "waste", "taste"))
    command = ["solve", str(file), "--method", "spy", "-o", "o.json", "--without"]
    with temporary_methods([entry]):
        assert main([*command, "haste, taste"]) == 0
        assert seen == [Limits(without=frozenset({"haste", "taste"}))]
        Path("o.json").unlink()
        assert refusal(capsys, *command, "haste,hurry").endswith(
            "method 'spy' has no rule 'hurry'; it has haste, waste, taste"
        )


@pytest.mark.parametrize("sub_batch", ["2", "auto"])
def test_compare_passes_workers(sub_batch: str, toys: Toys, swap: Method) -> None:
    seen: list[int] = []

    def spy(instance: Instance, limits: Limits) -> Answer:
        seen.append(limits.workers)
        return swap(instance, limits)

    toys(spy=spy)
    main(["compare", "lenet", "--batch", "4", "--sub-batch", sub_batch, "--workers", "3"])
    assert seen
    assert set(seen) == {3}


def test_solve_without_a_schedule_says_no(
    file: Path, toys: Toys, keep: Method, capsys: pytest.CaptureFixture[str]
) -> None:
    toys(keep=keep)
    assert main(["solve", str(file), "--method", "keep", "-o", "o.json"]) == 1
    assert "no schedule (no place for block 'D'" in capsys.readouterr().out
    assert not Path("o.json").exists()


def test_check_proves_or_gives_every_reason(
    file: Path, schedule_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main(["check", str(file), str(schedule_file)]) == 0
    assert capsys.readouterr().out == "valid\n"

    def spoil(document: dict[str, Any]) -> None:
        document["makespan_ns"] += 1
        document["instance_sha256"] = "0"

    spoilt = edit(schedule_file, spoil)
    assert main(["check", str(file), str(spoilt), "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["valid"] is False
    assert len(report["reasons"]) == 2
    assert main(["check", str(file), str(spoilt)]) == 1
    assert capsys.readouterr().out.splitlines() == report["reasons"]


def test_trace(file: Path, schedule_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["trace", str(file), str(schedule_file), "-o", "t.json", "--json"]) == 0
    events = json.loads(Path("t.json").read_text())["traceEvents"]
    assert json.loads(capsys.readouterr().out) == {"events": len(events)}


@pytest.mark.parametrize(
    "networks", [("lenet", "vgg16"), pytest.param(list_networks(), marks=pytest.mark.slow)]
)
def test_lists(
    networks: tuple[str, ...],
    toys: Toys,
    keep: Method,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    toys(keep=keep)
    monkeypatch.setattr(zoo, "list_networks", lambda: networks)
    assert main(["networks", "vgg16", "--batch", "64", "--json"]) == 0
    (network,) = json.loads(capsys.readouterr().out)["networks"]
    assert (network["name"], network["batch"], network["parameters"]) == ("vgg16", 64, 138_357_544)
    assert network["weight_bytes"] == 4 * 138_357_544
    assert {name: f"{size / 2**30:.2f}" for name, size in network["totals"].items()} == {
        "vdnn_network_wide": "6.20",
        "modnn_ideal": "8.26",
        "modnn_lower_bound": "1.07",
        "layrub_data_and_gradient": "7.23",
    }
    assert main(["networks", "lenet"]) == 0
    assert "13.72 MiB" in capsys.readouterr().out
    assert main(["networks"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {line.split()[0] for line in lines if line} >= {*networks}
    assert "lstm_cnn is not available: " in lines[-1]
    assert main(["devices", "--json"]) == 0
    devices = json.loads(capsys.readouterr().out)["devices"]
    assert "K40" in [device["name"] for device in devices]
    (card,) = [device for device in devices if device["name"] == "RTX4090"]
    assert (card["architecture"], card["bf16_flops"], card["prefetch_bandwidth"]) == ("ada", 165.2e12, 25.6e9)
    assert "measured" in dict(card["sources"])["offload_bandwidth"]
    assert main(["devices"]) == 0
    printed = capsys.readouterr().out
    cells = [line.split() for line in printed.splitlines()]
    assert ["RTX4090", "ada", "24.00", "GiB", "82.6", "82.6", "165.2", "165.2"] in [row[:8] for row in cells]
    assert ["K40", "kepler", "12.00", "GiB", "4.3", "288", "12.0", "12.0"] in [row[:8] for row in cells]
    assert main(["methods", "--json"]) == 0
    methods = json.loads(capsys.readouterr().out)["methods"]
    assert methods == [{"name": "keep", "summary": "the toy keep", "source": "tests"}]
    for command in (["networks", "lenet"], ["devices"], ["methods"]):
        assert main(command) == 0
        assert len(capsys.readouterr().out.splitlines()) >= 2


# --- bad input ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("compare no-such-network", "there is no network 'no-such-network'"),
        ("compare vgg61", "vgg16"),
        ("compare lenet --device gtx", "gtx"),
        ("compare lenet --methods kept", "there is no method 'kept'"),
        ("compare lenet --methods ,", "nothing to compare"),
        ("compare lenet --batch 0", "argument --batch: '0' is not a whole number from 1 on"),
        ("compare lenet --batch 4 --sub-batch 5", "a sub-batch of 5 is not within 1 and the batch of 4"),
        ("compare lenet --budget lots", "'lots' is not a budget"),
        ("compare lenet --budget=-1GiB", "'-1GiB' is not a budget"),
        ("compare lenet --budget 1MiB", "under the minimum"),
        ("compare lenet --time-limit soon", "'soon' is not a time"),
        ("compare no-such-file.json", "no-such-file.json cannot be read: No such file"),
        ("compare .", "cannot be read: Is a directory"),
        ("compare " + "a" * 5000, "File name too long"),
        ("compare lenet --out " + "a" * 5000, "File name too long"),
        ("instance lenet -o no/such/folder/x.json", "cannot be written: No such file"),
        ("bound no-such-file.json", "cannot be read"),
    ],
)
def test_wrong_arguments(
    arguments: str, words: str, toys: Toys, keep: Method, capsys: pytest.CaptureFixture[str]
) -> None:
    toys(keep=keep)
    assert words in refusal(capsys, *arguments.split())


def test_a_budget_is_refused_to_the_byte(
    file: Path, toys: Toys, swap: Method, capsys: pytest.CaptureFixture[str]
) -> None:
    toys(swap=swap)
    least = 4 * MIB
    line = refusal(capsys, "compare", str(file), "--budget", str(least - 1))
    assert f"under the minimum of {least} bytes" in line
    assert main(["compare", str(file), "--budget", str(least), "--out", "least"]) == 0
    assert main(["compare", str(file), "--budget", "1TB", "--out", "terabyte"]) == 0


def test_solving_under_the_minimum_is_refused(
    file: Path, toys: Toys, swap: Method, capsys: pytest.CaptureFixture[str]
) -> None:
    toys(swap=swap)
    under = edit(file, lambda document: document.update(budget_bytes=4 * MIB - 1))
    assert "under the minimum" in refusal(capsys, "solve", str(under), "--method", "swap", "-o", "o.json")


@pytest.mark.parametrize(
    "option",
    [
        "--batch=2",
        "--sub-batch=2",
        "--device=k40",
        "--graph=paper",
        "--profile=p",
        "--weights-as-blocks",
        "--steady",
        "--optimizer=sgd",
        "--optimizer-on=host",
        "--host-bandwidth=9GB/s",
        "--slowdown",
    ],
)
def test_a_file_settles_what_it_was_made_from(
    file: Path, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert f"settles {option.split('=')[0]}" in refusal(capsys, "compare", str(file), option)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d.update(colour="blue"), "unknown field `colour`"),
        (lambda d: d["blocks"][1].update(bites=3), "unknown field `bites` - at `$.blocks[1]`"),
        (lambda d: d["blocks"][1].update(bytes=-1), "`$.blocks[1].bytes`"),
        (lambda d: d["blocks"][1].update(bytes=1.5), "`$.blocks[1].bytes`"),
        (lambda d: d.update(budget_bytes=-1), "`$.budget_bytes`"),
        (lambda d: d["tasks"][0]["inputs"].append(99), "block index 99 is out of range 0..5"),
        (lambda d: d["tasks"].reverse(), "before it exists"),
        (lambda d: d.pop("tasks"), "missing required field `tasks`"),
    ],
)
def test_an_instance_file_that_breaks_a_rule(
    file: Path,
    change: Callable[[dict[str, Any]], object],
    words: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    line = refusal(capsys, "bound", str(edit(file, change)))
    assert "changed.json is not an instance: " in line
    assert words in line


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d["operations"][0].update(after=[1]), "'after' names 1, no operation earlier"),
        (lambda d: d["operations"][1].update(after=[1]), "'after' names 1, no operation earlier"),
        (lambda d: d["operations"][0].update(task=99), "task 99 is out of range 0..4"),
        (lambda d: d["residences"][0].update(block=99), "block 99 is out of range 0..5"),
        (lambda d: d["operations"][0].update(start_ns=-1), "`$.operations[0].start_ns`"),
        (lambda d: d.update(format="pebbler/schedule/2"), "pebbler/schedule/2"),
    ],
)
def test_a_schedule_file_that_breaks_a_rule(
    file: Path,
    schedule_file: Path,
    change: Callable[[dict[str, Any]], object],
    words: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    broken = str(edit(schedule_file, change))
    assert words in refusal(capsys, "check", str(file), broken)
    assert words in refusal(capsys, "trace", str(file), broken, "-o", "t.json")


@pytest.mark.parametrize(
    "content", [b"", b"\xff\xfe", b"[" * 100_000, b"[]", b"null", b'{"format": "pebbler/instance/1"}']
)
def test_files_that_are_no_instances(content: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    Path("bad.json").write_bytes(content)
    assert "bad.json is not an instance: " in refusal(capsys, "bound", "bad.json")


def test_a_truncated_file(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("half.json").write_bytes(file.read_bytes()[:500])
    assert "half.json is not an instance: input data was truncated" in refusal(capsys, "bound", "half.json")


def test_a_large_file_that_is_no_instance(capsys: pytest.CaptureFixture[str]) -> None:
    with Path("large.json").open("wb") as sparse:
        sparse.truncate(200 * MIB)
    assert "large.json is not an instance: " in refusal(capsys, "bound", "large.json")


def test_places_that_cannot_be_written(file: Path, toys: Toys, capsys: pytest.CaptureFixture[str]) -> None:
    def unreached(_: Instance, __: Limits) -> Answer:
        raise AssertionError("the place is looked at before the work begins")

    toys(unreached=unreached)
    Path("folder").mkdir()
    for place in ("folder", "no/such/folder/s.json", str(file / "s.json")):
        line = refusal(capsys, "solve", str(file), "--method", "unreached", "-o", place)
        assert "cannot be written" in line
    assert "cannot be a folder" in refusal(capsys, "compare", str(file), "--out", str(file))


def test_a_folder_that_is_called_like_a_network_is_no_file(capsys: pytest.CaptureFixture[str]) -> None:
    Path("lenet").mkdir()
    assert (
        main(["frontier", "lenet", "--batch", "8", "--method", "modnn", "--points", "1", "-o", "lenet"]) == 0
    )
    assert "there is no network 'nothing'" in refusal(capsys, "compare", "nothing")
    Path("nothing").mkdir()
    assert "nothing cannot be read: Is a directory" in refusal(capsys, "compare", "nothing")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission(capsys: pytest.CaptureFixture[str]) -> None:
    closed = Path("closed")
    closed.mkdir(mode=0o500)
    assert "Permission denied" in refusal(capsys, "instance", "lenet", "-o", str(closed / "x.json"))


# --- instance --from ----------------------------------------------------------------------------------


def foreign() -> str:
    """A chain of three nodes of 10 bytes, the last of which reads the first too."""
    nodes = [{"id": k, "out_cost": 10, "duration": 5} for k in range(3)]
    links = [{"source": a, "target": b} for a, b in [(0, 1), (1, 2), (0, 2)]]
    Path("graph.json").write_text(json.dumps({"nodes": nodes, "links": links}))
    return "graph.json"


def test_a_foreign_graph_becomes_an_instance(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["instance", "--from", foreign(), "--budget", "100%", "-o", "g.instance.json", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert (figures["name"], figures["tasks"], figures["budget_bytes"]) == ("graph", 3, 30)
    assert read_instance("g.instance.json").tasks[0].recomputable


def test_a_foreign_instance_gets_the_host_memory_that_is_asked_for() -> None:
    options = ["--budget", "100%", "--host-memory", "1GiB", "-o", "g.instance.json"]
    assert main(["instance", "--from", foreign(), *options]) == 0
    assert read_instance("g.instance.json").host_budget_bytes == 2**30


def test_a_config_of_g10_has_its_own_budget_unless_one_is_given(pytestconfig: pytest.Config) -> None:
    config = str(pytestconfig.rootpath / "tests" / "data" / "g10" / "small.config")
    assert instance("--from", config).budget_bytes == 12 * 2**20
    assert instance("--from", config, "--budget", "16MiB").budget_bytes == 2**24


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "give NETWORK, --torch, --onnx or --from FILE"),
        (["lenet", "--from", "graph.json"], "give NETWORK, --torch, --onnx or --from FILE"),
        (["--from", "graph.json"], "has no budget"),
        (["--from", "graph.json", "--budget", "29"], "is under the minimum of 30 bytes"),
        (["--from", "graph.json", "--budget", "50%", "--batch", "3"], "leave the option out"),
        (["--from", "none.json", "--budget", "50%"], "none.json cannot be read"),
    ],
)
def test_a_foreign_graph_is_asked_for_with_a_budget_and_nothing_else(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    foreign()
    assert told in refusal(capsys, "instance", *arguments, "-o", "g.instance.json")


# --- transforms, profiles and devices of one's own -----------------------------------------------------


def instance(*options: str) -> Instance:
    assert main(["instance", *options, "-o", "x.instance.json"]) == 0
    return read_instance("x.instance.json")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--engines", "single"], []),
        (["--inputs-on-clock"], ["inputs-on-clock"]),
        (["--link", "pcie5"], ["link=pcie5"]),
        (["--recompute"], ["recompute"]),
        (["--mask"], ["mask"]),
        (["--parts", "8MiB"], ["parts=8.00MiB"]),
        (["--parts", "8MiB", "--link", "25GB", "--mask"], ["link=25GB", "mask", "parts=8.00MiB"]),
        (["--parts", "auto", "--mask"], ["mask", "parts"]),
        (["--weights-as-blocks"], []),
        (["--steady"], []),
        (["--steady", "--optimizer", "adam", "--mask"], ["mask"]),
    ],
)
def test_an_instance_is_transformed(options: list[str], words: list[str]) -> None:
    plain, changed = instance("vgg16", "--batch", "2"), instance("vgg16", "--batch", "2", *options)
    assert [transform.word for transform in changed.applied] == words
    assert changed != plain
    assert changed.budget_bytes == plain.budget_bytes


def test_a_relative_budget_is_that_of_the_transformed_instance() -> None:
    plain, masked = (
        instance("vgg16", "--batch", "8", "--budget", "100%", *option) for option in ([], ["--mask"])
    )
    assert unlimited_peak(masked) == masked.budget_bytes != plain.budget_bytes


def test_parts_of_their_own_size_fit_the_budget() -> None:
    options = ("--batch", "64", "--device", "v100", "--budget", "1.05xMmin")
    made = instance("vgg16", *options, "--parts", "auto")
    assert made == with_parts(instance("vgg16", *options))
    assert in_parts(made)


def test_a_device_of_ones_own(pytestconfig: pytest.Config) -> None:
    text = (pytestconfig.rootpath / "instances" / "devices" / "devices.toml").read_text(encoding="utf-8")
    text = text[text.index("[TitanZ]") : text.index("[M40]")]
    Path("mine.toml").write_text(text.replace("[TitanZ", "[Mine"), encoding="utf-8")
    made = instance("lenet", "--device", "mine.toml")
    assert (made.made_from.device, made.budget_bytes) == ("Mine", 6 * 2**30)


def test_a_profile_takes_the_place_of_a_device(capsys: pytest.CaptureFixture[str]) -> None:
    modelled = instance("lenet", "--device", "v100")
    profile = Profile(
        network="lenet",
        graph="executable",
        machine=Machine(device="GPU", memory_bytes=2**30, driver="1", libraries={}, date="2026-11-20"),
        copies=(CopyTimes(bytes=1, offload_ns=7, prefetch_ns=7, move_ns=7),),
        tasks=tuple(
            TaskTimes(sub_batch=64, name=task.name, algorithms=task.algorithms) for task in modelled.tasks
        ),
    )
    write_profile(profile, "p.json")
    measured = instance("lenet", "--profile", "p.json")
    assert (measured.made_from.device, measured.made_from.cost_model) == ("GPU", "profile")
    assert measured.budget_bytes == 2**30
    assert measured.tasks == modelled.tasks
    told = refusal(capsys, "instance", "lenet", "--profile", "p.json", "--device", "k40", "-o", "y.json")
    assert told.endswith("p.json settles --device; leave the option out")
    told = refusal(capsys, "instance", "lenet", "--profile", "p.json", "--batch", "5", "-o", "y.json")
    assert "no sub-batch 5; it has 64" in told
    told = refusal(capsys, "instance", "lenet", "--profile", "p.json", "--cudnn", "7", "-o", "y.json")
    assert told.endswith("p.json settles --cudnn; leave the option out")


def test_the_library_is_chosen_beside_the_device() -> None:
    older, newer = (instance("vgg16", "--batch", "8", *option) for option in ([], ["--cudnn", "5.1"]))
    assert (older.made_from.cudnn, newer.made_from.cudnn) == ("4", "5.1")
    assert older.made_from.cost_model_version == newer.made_from.cost_model_version == 2
    names = {algorithm.name for task in newer.tasks for algorithm in task.algorithms}
    assert "winograd" in names
    assert "winograd" not in {algorithm.name for task in older.tasks for algorithm in task.algorithms}


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--parts", "1MiB"], "smaller than a page"),
        (["--parts", "some"], "'some' is not a size"),
        (["--link", "isdn"], "'isdn' is not a link"),
        (["--mask", "--graph", "paper"], "no ReLU has a task of its own"),
        (["--profile", "none.json"], "none.json cannot be read"),
        (["--device", "none.toml"], "none.toml cannot be read"),
        (["--cudnn", "3"], "there is no cuDNN '3'; there are 4, 5.0, 5.1, 6, 7, 8, 9"),
        (["--device", "v100", "--cudnn", "6"], "cuDNN 6 is older than volta; there are 7, 8, 9"),
    ],
)
def test_wrong_transforms_are_refused(
    options: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert told in refusal(capsys, "instance", "lenet", *options, "-o", "x.json")
