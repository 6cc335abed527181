"""A small fuzzing study, and that its judge and its damage are worth something."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from random import Random

import pytest

from pebbler.cli.main import main

from ..samples import counts
from ..solver.processes import alive, children, eventually
from .inputs import FORMS, seeds
from .mutations import damaged
from .study import Input, Seeds, conduct, draw, judge, markdown
from .worker import Ran, Worker


@pytest.fixture(scope="module")
def kinds() -> Seeds:
    return seeds()


def test_every_command_is_fuzzed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    commands = re.findall(r"^    ([a-z][a-z-]+)(?:  |$)", capsys.readouterr().out, re.MULTILINE)
    assert {form.command for form in FORMS} == set(commands)


@pytest.mark.parametrize("count", counts(12, 200))
def test_inputs_break_nothing(count: int) -> None:
    found = conduct(count, seed=27)
    assert sum(tally.inputs for tally in found.values()) == count
    assert [what for tally in found.values() for what in tally.failures] == []
    assert sum(tally.statuses["0"] for tally in found.values()) >= count / 10
    assert sum(tally.statuses["2"] for tally in found.values()) >= count / 5
    assert f"| **all** | {count} |" in markdown(found, 27)


def test_an_input_is_the_same_whatever_came_before(kinds: Seeds) -> None:
    assert draw(41, 0, kinds) == draw(41, 0, kinds)
    assert len({draw(number, 0, kinds).arguments for number in range(60)}) > 30


def test_damage_differs_from_what_it_was(kinds: Seeds) -> None:
    rng = Random(0)
    for kind, contents in kinds.items():
        made = {damaged(kind, contents[0], rng) for _ in range(20)}
        assert len(made - {contents[0]}) > 5, kind


@pytest.mark.parametrize(
    ("ran", "said"),
    [
        (Ran(None, "", "", 60.0), "did not end"),
        (Ran(-11, "", "", 1.0), "exit status"),
        (Ran(1, "", "Traceback (most recent call last):\nKeyError: 'x'\n", 1.0), "traceback"),
        (Ran(2, "", "", 1.0), "without a sentence"),
        (Ran(2, "", "pebbler: " + "x" * 500 + "\n", 1.0), "characters"),
        (Ran(2, "", "pebbler: \x1b[31m\n", 1.0), "control characters"),
        (Ran(0, "not JSON", "", 1.0), "no JSON"),
        (Ran(0, "{}\x1b", "", 1.0), "control characters"),
    ],
)
def test_the_judge_sees_what_is_wrong(ran: Ran, said: str, tmp_path: Path) -> None:
    given = Input(0, "check", ("check", "a", "b", "--json"), {})
    assert any(said in what for what in judge(given, ran, tmp_path, set()))


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        (".out.x", b"x", "left over"),
        ("out", b"", "empty"),
        ("out", b"x", "yet a file"),
        ("o/x.json", b"{", "half"),
    ],
)
def test_the_judge_sees_files_that_should_not_be_there(
    name: str, data: bytes, said: str, tmp_path: Path
) -> None:
    given = Input(0, "trace", ("trace",), {})
    refused = Ran(2, "", "pebbler: it is wrong\n", 1.0)
    assert list(judge(given, refused, tmp_path, set())) == []
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes(data)
    (what,) = judge(given, refused, tmp_path, set())
    assert said in what


@pytest.mark.landing
def test_there_is_a_new_process_after_one_that_was_lost(tmp_path: Path) -> None:
    others = children()
    with Worker() as worker:
        assert json.loads(worker.run(["devices", "--json"], tmp_path).out)["devices"]
        (process,) = set(children()) - set(others)
        os.kill(process, signal.SIGKILL)
        assert eventually(lambda: not alive(process))
        assert worker.run(["devices"], tmp_path).status is None
        assert worker.run(["devices"], tmp_path).status == 0
