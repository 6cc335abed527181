from __future__ import annotations

import functools
import itertools
import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ortools.sat.python import cp_model

from pebbler.cli.main import main
from pebbler.heuristics.clock import until
from pebbler.heuristics.program.placement import Piece
from pebbler.instances.buffers import Buffer, read_buffers, write_offsets
from pebbler.instances.errors import PebblerError
from pebbler.instances.units import ceil_to
from pebbler.solver.packing import descent
from pebbler.solver.packing import pack as packing
from pebbler.solver.packing import search as packing_search
from pebbler.solver.packing.cp_sat import pack_by_cp_sat
from pebbler.solver.packing.descent import Trial, search_lowest
from pebbler.solver.packing.groups import Group
from pebbler.solver.packing.pack import pack, places
from pebbler.solver.packing.search import Answer, PackingSearch
from pebbler.solver.result import Status
from pebbler.validate.packing import check_packing

MINIMALLOC_EXAMPLE = """\
id,lower,upper,size
b1,0,3,4
b2,3,9,4
b3,0,9,4
b4,9,21,4
b5,0,21,4
"""
WINDMILL = [
    Buffer("left", 0, 1, 3),
    Buffer("bottom", 0, 3, 1),
    Buffer("middle", 1, 3, 2),
    Buffer("right", 3, 4, 3),
    Buffer("top", 1, 4, 1),
]
"""Five buffers that fill a square of 4 and that no order of size packs by first fit."""
GAP = [
    Buffer(str(i), *figures)
    for i, figures in enumerate(
        [
            (0, 1, 1),
            (0, 4, 3),
            (2, 6, 1),
            (4, 7, 1),
            (5, 8, 1),
            (6, 7, 2),
            (7, 8, 3),
            (1, 2, 1),
            (5, 6, 1),
            (4, 5, 2),
        ]
    )
]
"""At most 4 bytes live at once, and yet no packing has height 4."""
KINDS: list[dict[str, bool]] = [{}, {"aligned": True}, {"gaps": True}, {"aligned": True, "gaps": True}]
FILES = [
    ("A", 1_048_576),
    ("B", 1_048_576),
    ("C", 1_039_360),
    ("E", 1_048_576),
    ("F", 1_048_576),
    ("G", 1_048_576),
]


def random_buffers(
    seed: int, count: int, horizon: int = 6, *, aligned: bool = False, gaps: bool = False
) -> list[Buffer]:
    dice = random.Random(seed)
    buffers = []
    for i in range(count):
        lower = dice.randrange(horizon)
        upper = dice.randint(lower + 1, horizon)
        alignment = dice.choice((1, 2, 4)) if aligned else 1
        buffers.append(Buffer(str(i), lower, upper, dice.randint(1, 5), alignment))
    return [with_gaps(buffer, dice) for buffer in buffers] if gaps else buffers


def with_gaps(buffer: Buffer, dice: random.Random) -> Buffer:
    """The buffer without some of the time inside its lifetime, in as many gaps as that makes."""
    inside = [now for now in range(buffer.lower + 1, buffer.upper - 1) if dice.random() < 0.6]
    begins = [now for now in inside if now - 1 not in inside]
    ends = [now + 1 for now in inside if now + 1 not in inside]
    return replace(buffer, gaps=tuple(zip(begins, ends, strict=True)))


def is_live(buffer: Buffer, now: int) -> bool:
    return buffer.lower <= now < buffer.upper and not any(a <= now < b for a, b in buffer.gaps)


def live_together(a: Buffer, b: Buffer) -> bool:
    return any(is_live(a, now) and is_live(b, now) for now in range(a.lower, a.upper))


def fits(buffers: Sequence[Buffer], height: int, placed: Sequence[tuple[Buffer, int]] = ()) -> bool:
    """Try every offset of every buffer."""
    if len(placed) == len(buffers):
        return True
    buffer = buffers[len(placed)]
    rivals = [(offset, offset + other.size) for other, offset in placed if live_together(other, buffer)]
    return any(
        all(offset >= top or bottom >= offset + buffer.size for bottom, top in rivals)
        and fits(buffers, height, [*placed, (buffer, offset)])
        for offset in range(0, height - buffer.size + 1, buffer.alignment)
    )


def least_height(buffers: Sequence[Buffer]) -> int:
    """Try every height, from what is live at once on."""
    times = range(max(b.upper for b in buffers))
    live = max(sum(b.size for b in buffers if is_live(b, now)) for now in times)
    return next(height for height in itertools.count(live) if fits(buffers, height))


def search_of(buffers: Sequence[Buffer], height: int) -> PackingSearch:
    size, alignment = (np.array([getattr(b, name) for b in buffers]) for name in ("size", "alignment"))
    return PackingSearch([b.stays for b in buffers], size, alignment, height)


# --- the checker --------------------------------------------------------------------------------------


def test_a_packing_that_holds_has_no_reasons_against_it() -> None:
    buffers = [Buffer("a", 0, 2, 4), Buffer("b", 2, 3, 4), Buffer("c", 1, 3, 2)]
    assert check_packing(buffers, [0, 0, 4], 6) == ()


@pytest.mark.parametrize(
    ("offsets", "reason"),
    [
        ([0, 0, 3], "buffers 'a' and 'c' share bytes from 3 at time 1"),
        ([0, 5, 4], "buffers 'c' and 'b' share bytes from 5 at time 2"),
        ([0, -2, 4], "buffer 'b' is at -2, before the first byte"),
        ([0, 0, 5], "buffer 'c' is at 5, no multiple of 2"),
        ([0, 0, 8], "buffer 'c' ends at 10, beyond 9"),
        ([0, 0], "there are 2 offsets for 3 buffers"),
    ],
)
def test_a_packing_that_does_not_hold_is_told_why(offsets: list[int], reason: str) -> None:
    buffers = [Buffer("a", 0, 2, 4), Buffer("b", 2, 3, 4), Buffer("c", 1, 3, 2, alignment=2)]
    assert reason in check_packing(buffers, offsets, 9)


def test_the_checker_agrees_with_a_count_of_every_byte() -> None:
    answers = set()
    for seed in range(300):
        buffers, dice = random_buffers(seed, 4, gaps=seed % 2 == 1), random.Random(-seed - 1)
        offsets = [dice.randrange(12) for _ in buffers]
        cells = [
            (now, byte)
            for b, offset in zip(buffers, offsets, strict=True)
            for now in range(b.lower, b.upper)
            if is_live(b, now)
            for byte in range(offset, offset + b.size)
        ]
        holds = len(set(cells)) == len(cells)
        assert (check_packing(buffers, offsets) == ()) == holds
        answers.add(holds)
    assert answers == {True, False}


# --- the search ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_the_search_finds_what_is_there_and_proves_what_is_not(kind: dict[str, bool]) -> None:
    answers = []
    for buffers in [GAP, *(random_buffers(seed, 6, **kind) for seed in range(60))]:
        least = least_height(buffers)
        search = search_of(buffers, least)
        assert search.run(10**6) == Answer.FOUND
        assert check_packing(buffers, search.offsets.tolist(), least) == ()
        lower = search_of(buffers, least - 1)
        answers.append(lower.answer)
        assert lower.run(10**6) == Answer.IMPOSSIBLE
    assert Answer.OPEN in answers


def test_a_search_that_is_stopped_goes_on_from_where_it_was() -> None:
    buffers = random_buffers(1, 14, horizon=10)
    height = max(sum(b.size for b in buffers if b.lower <= now < b.upper) for now in range(10))
    at_once, in_steps = search_of(buffers, height), search_of(buffers, height)
    answer = at_once.run(10**6)
    steps = 0
    while in_steps.run(1) == Answer.OPEN:
        steps += 1
    assert steps > 1
    assert in_steps.answer == answer
    assert in_steps.offsets.tolist() == at_once.offsets.tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_the_lowest_is_found_and_proven_without_cp_sat(kind: dict[str, bool]) -> None:
    """Also where the bound cannot be reached, and where first fit has not been there."""
    above = 0
    for buffers in [GAP, *(random_buffers(seed, 6, **kind) for seed in range(100, 125))]:
        group, least = stacked(buffers), least_height(buffers)
        above += least > group.lower
        assert search_lowest(group, group.lower, 100, math.inf) == least
        assert group.height() == least
        assert check_packing(buffers, group.placed().tolist(), least) == ()
    assert above


def test_heights_above_a_bound_that_is_not_reached_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """No search under a height finds anything, and one at it finds a packing of just that height."""
    buffers = random_buffers(9, 60, horizon=30)
    group = stacked(buffers)
    lower, least, before = group.lower, group.lower + 20, group.height()

    class Hard(Trial):
        def run(self, turns: int, _: float) -> Answer:
            if self.target < least:
                self.turns += turns
                return Answer.OPEN
            group.offsets = np.full(len(buffers), self.target) - group.size
            return Answer.FOUND

    monkeypatch.setattr(descent, "Trial", Hard)
    assert search_lowest(group, lower, 1000, math.inf) == lower
    assert least <= group.height() <= least + 2 < before


def test_a_descent_ends_with_its_turns_and_its_time() -> None:
    for turns, deadline in ((1, math.inf), (10**9, -math.inf)):
        group = stacked(random_buffers(9, 400, horizon=200))
        before = group.height()
        assert search_lowest(group, group.lower, turns, deadline) == group.lower
        assert group.height() <= before


def test_the_search_is_the_same_without_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    for gaps in (False, True):
        buffers = random_buffers(5, 8, gaps=gaps)
        compiled = search_of(buffers, 17)
        answer = compiled.run(10**6)
        with monkeypatch.context() as patch:
            patch.setattr(packing_search, "compiled", lambda: packing_search.advance)
            plain = search_of(buffers, 17)
            assert plain.run(10**6) == answer
        assert plain.offsets.tolist() == compiled.offsets.tolist()


# --- pack ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_pack_reaches_the_least_height_of_tiny_ones(kind: dict[str, bool]) -> None:
    for buffers in [GAP, *(random_buffers(seed, 6, **kind) for seed in range(100, 125))]:
        result = pack(buffers)
        assert result.offsets is not None
        assert check_packing(buffers, result.offsets) == ()
        assert (result.status, result.height) == (Status.OPTIMAL, least_height(buffers))
        assert result.lower_bound == result.height


def test_more_may_be_needed_than_is_live_at_once() -> None:
    assert max(sum(b.size for b in GAP if b.lower <= now < b.upper) for now in range(8)) == 4
    assert not fits(GAP, 4)
    assert pack(GAP).height == 5


def test_first_fit_is_not_enough_for_a_windmill() -> None:
    first_fit = pack(WINDMILL, time_limit=0)  # there is no time for more
    assert first_fit.offsets is not None
    assert check_packing(WINDMILL, first_fit.offsets) == ()
    assert (first_fit.status, first_fit.height) == (Status.FEASIBLE, 5)
    result = pack(WINDMILL)
    assert (result.status, result.height) == (Status.OPTIMAL, 4)


def test_cp_sat_alone_agrees_with_brute_force() -> None:
    for buffers in [GAP, *(random_buffers(seed, 5, aligned=True, gaps=seed % 2 == 1) for seed in range(10))]:
        least = least_height(buffers)
        lowest = stacked(buffers)
        assert pack_by_cp_sat(one_worker(), lowest, 0, lowest.height(), lowest=True) == (least, False)
        assert lowest.height() == least
        assert check_packing(buffers, lowest.placed().tolist(), least) == ()
        none = stacked(buffers)
        assert pack_by_cp_sat(one_worker(), none, 0, least - 1, lowest=False) == (least, False)
        assert none.offsets is None or none.height() > least - 1
        some = stacked(buffers)
        assert pack_by_cp_sat(one_worker(), some, 0, least, lowest=False) == (0, False)
        assert check_packing(buffers, some.placed().tolist(), least) == ()


def one_worker() -> cp_model.CpSolver:
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    return solver


def stacked(buffers: Sequence[Buffer]) -> Group:
    """All buffers on top of each other, whether or not they live together."""
    group = Group(buffers, range(len(buffers)), 1)
    places, top = [], 0
    for buffer in buffers:
        top = ceil_to(top, max(buffer.alignment, 1))
        places.append(top)
        top += buffer.size
    group.offsets = np.array(places, np.int64)
    return group


def test_a_capacity_is_met_or_proven_to_be_too_small() -> None:
    for buffers in [GAP, *(random_buffers(seed, 6, gaps=seed % 2 == 1) for seed in range(20))]:
        least = least_height(buffers)
        fits = pack(buffers, capacity=least + 1)
        assert fits.status in (Status.OPTIMAL, Status.FEASIBLE)
        assert fits.offsets is not None
        assert check_packing(buffers, fits.offsets, least + 1) == ()
        assert fits.lower_bound <= least <= (fits.height or 0)
        none = pack(buffers, capacity=least - 1)
        assert (none.status, none.height, none.offsets) == (Status.INFEASIBLE, None, None)
        assert none.lower_bound == least


def test_what_sizes_share_is_divided_out_and_multiplied_back() -> None:
    buffers = random_buffers(3, 6)
    large = [Buffer(b.id, b.lower * 7, b.upper * 7, b.size * 2**40) for b in buffers]
    assert pack(large).height == (pack(buffers).height or 0) * 2**40


def test_groups_that_never_meet_are_packed_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    sought = []

    def noted(stays: Sequence[Sequence[tuple[int, int]]], *others: Any) -> PackingSearch:
        sought.append(len(stays))
        return PackingSearch(stays, *others)

    monkeypatch.setattr(descent, "PackingSearch", noted)
    buffers = [
        Buffer(f"{b.id}{i}", b.lower + 10 * i, b.upper + 10 * i, b.size) for i in range(3) for b in WINDMILL
    ]
    assert pack(buffers).height == 4
    assert set(sought) == {5}


def test_without_time_the_packing_holds_and_nothing_is_claimed() -> None:
    buffers = random_buffers(8, 60, horizon=30)
    result = pack(buffers, time_limit=0)
    assert result.offsets is not None
    assert check_packing(buffers, result.offsets) == ()
    live = max(sum(b.size for b in buffers if b.lower <= now < b.upper) for now in range(30))
    assert result.lower_bound == live
    assert (result.status == Status.OPTIMAL) == (result.height == live)


def test_first_fit_gives_up_where_one_order_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "LEAST", 0.0)
    result = pack(random_buffers(8, 400, horizon=30), time_limit=0)
    assert (result.status, result.offsets) == (Status.UNKNOWN, None)
    assert result.lower_bound > 0


def test_places_are_sought_until_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def note(_: list[Buffer], *, time_limit: float | None, **__: object) -> packing.PackResult:
        asked.append(time_limit)
        return packing.PackResult(Status.UNKNOWN, None, None, 0, None)

    monkeypatch.setattr(packing, "pack", note)
    packing.places([Piece(4, 0, 1)], 8, 1)
    with until(time.monotonic() + 5.0):
        packing.places([Piece(4, 0, 1)], 8, 1)
    assert asked[0] is None
    assert 0.0 < asked[1] <= 5.0


def test_the_same_call_gives_the_same_offsets() -> None:
    buffers = random_buffers(8, 40, horizon=20)
    assert pack(buffers).offsets == pack(buffers).offsets


def test_ctrl_c_keeps_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    packing.load_search()  # it runs a small search
    monkeypatch.setattr(PackingSearch, "run", interrupt)
    result = pack(WINDMILL)
    assert (result.status, result.height, result.interrupted) == (Status.FEASIBLE, 5, True)


@pytest.mark.parametrize(
    ("buffers", "sentence"),
    [([], "there are no buffers"), ([Buffer("a", 0, 1, 2**53), Buffer("b", 0, 1, 1)] * 2**6, "too large")],
)
def test_what_cannot_be_packed_is_refused(buffers: list[Buffer], sentence: str) -> None:
    with pytest.raises(PebblerError, match=sentence):
        pack(buffers)


@functools.cache
def minimalloc_file(root: Path, name: str) -> Path:
    file = root.parent / "shared" / "data" / "minimalloc" / f"{name}.1048576.csv"
    if not file.exists():
        pytest.skip("MiniMalloc's benchmark files are not beside the checkout")
    return file


@pytest.mark.parametrize(
    ("name", "least"),
    [pytest.param(*file, marks=pytest.mark.slow if file[0] in "BEG" else []) for file in FILES],
)
def test_minimallocs_hard_files_are_packed_as_low_as_possible(
    name: str, least: int, pytestconfig: pytest.Config
) -> None:
    buffers = read_buffers(minimalloc_file(pytestconfig.rootpath, name))
    result = pack(buffers, time_limit=60)
    assert result.offsets is not None
    assert check_packing(buffers, result.offsets, least) == ()
    assert (result.status, result.height, result.lower_bound) == (Status.OPTIMAL, least, least)


# --- the file and the command -------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("b.csv").write_text(MINIMALLOC_EXAMPLE)
    return Path("b.csv")


def test_the_command_packs_minimallocs_example(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pack", str(file), "--capacity", "12", "--json", "-o", "out.csv"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer == {"status": "optimal", "height": 12, "capacity": 12, "lower_bound": 12}
    lines = Path("out.csv").read_text().splitlines()
    assert lines[0] == "id,lower,upper,size,offset"
    assert [line.rsplit(",", 1)[0] for line in lines[1:]] == MINIMALLOC_EXAMPLE.splitlines()[1:]
    offsets = [int(line.rsplit(",", 1)[1]) for line in lines[1:]]
    assert check_packing(read_buffers("out.csv"), offsets, 12) == ()


def test_the_command_says_that_none_fits(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pack", str(file), "--capacity", "11", "--json", "-o", "out.csv"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert answer == {"status": "infeasible", "height": None, "capacity": 11, "lower_bound": 12}
    assert not Path("out.csv").exists()


def test_the_command_prints_for_people(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pack", str(file)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "status           optimal",
        "height           12 (12 B)",
        "lower bound      12 (12 B)",
    ]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "line 1: column 'id' is missing"),
        ("id,lower,upper\n", "line 1: column 'size' is missing"),
        ("id,lower,upper,size,colour\n", "line 1: column 'colour' is not known"),
        ("id,lower,upper,size,gaps\na,0,9,1,3\n", "line 2: gap '3' is not of the form begin-end"),
        ("id,lower,upper,size,gaps\na,0,9,1,3-x\n", "line 2: gap '3-x' is not of the form begin-end"),
        ("id,lower,upper,size,gaps\na,0,9,1,3-5@0:2\n", "line 2: gap '3-5@0:2' keeps some bytes"),
        ("id,lower,upper,size,gaps\na,0,9,1,5-3\n", "line 2: buffer 'a' has the gaps 5-3 in [0, 9)"),
        ("id,lower,upper,size,gaps\na,0,9,1,0-3\n", "line 2: buffer 'a' has the gaps 0-3 in [0, 9)"),
        ("id,lower,upper,size,gaps\na,0,9,1,2-3 3-4\n", "line 2: buffer 'a' has the gaps 2-3 3-4"),
        ("id,lower,upper,size,gaps\na,0,9,1,1-99999999999999999999\n", "is not a whole number"),
        ("id,lower,upper,size,size\n", "line 1: column 'size' is there twice"),
        ("id,lower,upper,size\na,0,1\n", "line 2: 3 values for 4 columns"),
        ("id,lower,upper,size\na,0,1,4\nb,0,x,4\n", "line 3: upper 'x' is not a whole number"),
        ("id,lower,upper,size\na,0,1,4\na,0,2,4\n", "line 3: id 'a' is there twice"),
        ("id,lower,upper,size\na,3,3,4\n", "line 2: buffer 'a' lives in [3, 3)"),
        ("id,lower,upper,size\na,0,1,0\n", "line 2: buffer 'a' has size 0"),
        ("id,lower,upper,size,alignment\na,0,1,4,0\n", "line 2: buffer 'a' has alignment 0"),
        ('id,lower,upper,size\n"a,0,1,4\n', "line 2: "),
        ("id,lower,upper,size\n", "there are no buffers"),
    ],
)
def test_a_bad_file_is_refused_in_one_sentence(
    text: str, sentence: str, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(text)
    assert main(["pack", str(file), "-o", "out.csv"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert sentence in line
    assert not Path("out.csv").exists()


def test_files_that_are_no_text_or_not_there_are_refused(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_bytes(b"\xff\xfe\x00")
    assert main(["pack", str(file)]) == 2
    assert main(["pack", "none.csv"]) == 2
    binary, missing = capsys.readouterr().err.splitlines()
    assert "not text in UTF-8" in binary
    assert "none.csv cannot be read" in missing


def test_what_lives_in_a_gap_may_lie_there(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text("id,lower,upper,size,gaps\na,-2,9,4,-1-2 3-5\nb,0,2,4,\nc,3,5,4,\n")
    assert main(["pack", str(file), "-o", "out.csv"]) == 0
    assert capsys.readouterr().out.split()[:3] == ["status", "optimal", "height"]
    assert Path("out.csv").read_text() == (
        "id,lower,upper,size,gaps,offset\na,-2,9,4,-1-2 3-5,0\nb,0,2,4,,0\nc,3,5,4,,0\n"
    )
    assert read_buffers("out.csv") == read_buffers(file)


def test_alignment_and_odd_names_survive_a_round_trip(file: Path) -> None:
    buffers = (Buffer('a, "b"', -1, 2, 5, alignment=4), Buffer("c", 0, 1, 3))
    write_offsets(buffers, [4, 0], file)
    assert file.read_text().splitlines()[0] == "id,lower,upper,size,alignment,offset"
    assert read_buffers(file) == buffers


def test_importing_the_packer_loads_neither_compiler_nor_solver() -> None:
    code = (
        "import sys, pebbler.solver.packing.pack; "
        "sys.exit(bool({'numba', 'ortools.sat.python.cp_model'} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.skipif(os.name == "nt", reason="signals are POSIX's")
def test_the_command_writes_its_best_when_it_is_interrupted(file: Path) -> None:
    dice = random.Random(3)
    begins = [dice.randrange(300) for _ in range(packing.LARGEST_SEARCH + 100)]
    rows = [
        f"{i},{begin},{begin + dice.randint(1, 60)},{dice.randint(1000, 5000)}"
        for i, begin in enumerate(begins)
    ]
    file.write_text("\n".join(["id,lower,upper,size", *rows]) + "\n")
    command = [sys.executable, "-m", "pebbler", "pack", str(file), "--verbose", "-o", "out.csv"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert "first fit" in process.stderr.readline()
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "status           feasible" in out
    assert len(Path("out.csv").read_text().splitlines()) == len(rows) + 1


def test_places_with_little_effort_are_apart_inside_and_always_the_same() -> None:
    rng = random.Random(5)
    found = 0
    for _ in range(60):
        lifetimes = []
        for _ in range(rng.randint(1, 30)):
            begin = rng.randint(0, 20)
            lifetimes.append(Piece(4 * rng.randint(1, 12), begin, begin + rng.randint(1, 9)))
        live = max(sum(s for s, b, e, _ in lifetimes if b <= t < e) for t in range(30))
        assert places(lifetimes, live - 1, 4) is None
        offsets = places(lifetimes, live + 8, 4)
        assert offsets == places(lifetimes, live + 8, 4)
        if offsets is None:
            continue
        found += 1
        pieces = [(*lifetime[:3], at) for lifetime, at in zip(lifetimes, offsets, strict=True)]
        assert all(at % 4 == 0 and 0 <= at <= live + 8 - size for size, _, _, at in pieces)
        for (s, b, e, at), (t, c, f, to) in itertools.combinations(pieces, 2):
            assert e <= c or f <= b or at + s <= to or to + t <= at
    assert found > 50
    assert places([], 0, 4) == []
