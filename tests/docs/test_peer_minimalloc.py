"""MiniMalloc as a program that pebbler calls: its adapter, with a stand-in for the executable."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest

from pebbler.heuristics.methods import Limits
from pebbler.instances.instance import Algorithm, Block, Instance, Task
from pebbler.instances.suites.suite import find_suite, members
from pebbler.validate.check import check
from peer_minimalloc import blocks_of, find

STAND_IN = """#!{python}
import csv, sys
flags = dict(word.lstrip("-").split("=") for word in sys.argv[1:])
assert flags.keys() == {{"capacity", "timeout", "input", "output"}}
assert float(flags["timeout"].rstrip("s")) > 0
with open(flags["input"]) as file:
    buffers = [{{key: int(cell) for key, cell in row.items()}} for row in csv.DictReader(file)]
if {refuse}:
    sys.exit(1)
places = []
for one in sorted(buffers, key=lambda one: -one["size"]):
    beside = [o for o in places if o["lower"] < one["upper"] and one["lower"] < o["upper"]]
    free = [0, *(o["offset"] + o["size"] for o in beside)]
    clear = lambda at: all(at + one["size"] <= o["offset"] or o["offset"] + o["size"] <= at for o in beside)
    places.append({{**one, "offset": min(filter(clear, free))}})
if max(one["offset"] + one["size"] for one in places) > int(flags["capacity"]):
    sys.exit(1)
with open(flags["output"], "w") as file:
    writer = csv.DictWriter(file, places[0])
    writer.writeheader()
    writer.writerows(places)
"""
"""A program with its flags: what is largest has its place first. It may refuse some problems."""

LIMITS = Limits(time_limit=20.0, memory="contiguous")


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "minimalloc"
    monkeypatch.setenv("MINIMALLOC", str(file))
    refusing(file, "False")
    return file


def refusing(file: Path, condition: str) -> None:
    file.write_text(STAND_IN.format(python=sys.executable, refuse=condition))
    file.chmod(0o755)


def task(name: str, reads: tuple[int, ...], makes: tuple[int, ...], *ways: tuple[int, int]) -> Task:
    algorithms = [Algorithm(name=f"a{i}", duration_ns=t, workspace_bytes=w) for i, (t, w) in enumerate(ways)]
    return Task(name=name, inputs=reads, outputs=makes, algorithms=tuple(algorithms))


@pytest.fixture
def two() -> Instance:
    """Two tasks with a block from one to the other, and workspaces: of 3 units, 2 are free beside blocks."""
    x = Block(name="x", bytes=500, offload_ns=None, prefetch_ns=None, initially="device", finally_="device")
    return Instance(
        format="pebbler/instance/1",
        name="two",
        engines="duplex",
        budget_bytes=4 * 512,
        resident_bytes=0,
        blocks=(x, Block(name="y", bytes=512, offload_ns=None, prefetch_ns=None)),
        tasks=(
            task("f", (0,), (1,), (10, 0), (4, 1024), (2, 1025), (9, 512)),
            task("b", (1,), (), (20, 0), (11, 512)),
        ),
    )


@pytest.mark.usefixtures("stand_in")
def test_the_fastest_algorithms_that_have_room_are_placed(two: Instance) -> None:
    schedule = find(two, LIMITS)
    assert schedule is not None
    assert check(two, schedule).valid
    assert schedule.makespan_ns == 4 + 11
    assert schedule.peak_bytes == two.budget_bytes


def test_algorithms_get_faster_one_by_one_where_they_do_not_fit_together(
    two: Instance, stand_in: Path
) -> None:
    refusing(stand_in, "len(buffers) > 3")
    schedule = find(two, LIMITS)
    assert schedule is not None
    assert check(two, schedule).valid
    assert schedule.makespan_ns == 10 + 11  # b saves 9 for 512 bytes, f 6 for 1024
    refusing(stand_in, "len(buffers) > 2")
    assert (schedule := find(two, LIMITS)) is not None
    assert check(two, schedule).valid
    assert schedule.makespan_ns == 30
    refusing(stand_in, "True")
    assert find(two, LIMITS) is None


@pytest.mark.usefixtures("stand_in")
def test_what_needs_more_than_addresses_gets_no_schedule(two: Instance) -> None:
    x, y = two.blocks
    for other in (
        msgspec.structs.replace(two, budget_bytes=2 * 512 - 1),
        msgspec.structs.replace(two, blocks=(msgspec.structs.replace(x, finally_="host", offload_ns=1), y)),
        msgspec.structs.replace(two, blocks=(msgspec.structs.replace(x, initially="host", prefetch_ns=1), y)),
    ):
        assert find(other, LIMITS) is None
    assert blocks_of(two, "paged") is None


@pytest.mark.usefixtures("stand_in")
def test_it_places_an_instance_of_the_suite() -> None:
    name = "pack-u-shaped-slack103"
    instance = next(one for one in members(find_suite("pebbler-2026")) if one.name == name).build()
    schedule = find(instance, LIMITS)
    assert schedule is not None
    assert check(instance, schedule).valid
    assert schedule.makespan_ns < 8_500_000
