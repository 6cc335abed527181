"""The command ``contest``: from a secret to the scores."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path

import pytest

from pebbler.cli.main import main

from .refusals import refusal

pytestmark = pytest.mark.usefixtures("elsewhere")


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    capsys.readouterr()
    assert main([*arguments, "--json"]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def test_from_a_secret_to_the_scores(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["contest", "commit", "-o", "secret.txt"]) == 0
    published = sha256(Path("secret.txt").read_bytes()).hexdigest()
    assert capsys.readouterr().out == (
        f"secret.txt: keep it until the end; publish its SHA-256 now: {published}\n"
    )
    drawn = answer(capsys, "contest", "draw", "secret.txt", "--count", "2", "-o", "hidden")
    assert drawn == {"instances": 2, "sha256": published}
    Path("entries", "mine").mkdir(parents=True)
    schedule = Path("entries", "mine", "hidden-000.schedule.json")
    assert main(["solve", "hidden/hidden-000.instance.json", "--method", "modnn", "-o", str(schedule)]) == 0
    scored = answer(capsys, "contest", "score", "hidden", "entries")
    assert scored["instances"] == 2
    (mine,) = scored["entrants"]  # type: ignore[misc]
    makespan = json.loads(schedule.read_text())["makespan_ns"]
    assert mine["judged"] == {
        "hidden-000": {"makespan_ns": makespan, "reason": None},
        "hidden-001": {"makespan_ns": None, "reason": "missing"},
    }
    assert (mine["rank"], mine["entrant"], mine["points"], mine["missing"]) == (1, "mine", 50.0, 1)


def test_a_name_that_does_not_print_is_shown_as_its_codes(capsys: pytest.CaptureFixture[str]) -> None:
    Path("secret.txt").write_text("a secret that is long enough to be one\n")
    assert main(["contest", "draw", "secret.txt", "--count", "1", "-o", "hidden"]) == 0
    Path("entries", "\x1b[31m").mkdir(parents=True)
    assert main(["contest", "score", "hidden", "entries"]) == 0
    assert r"\x1b[31m, hidden-000: missing" in capsys.readouterr().out


def test_bad_usage_is_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    Path("short.txt").write_text("1\n")
    assert "may be the secret" in refusal(capsys, "contest", "commit", "-o", "short.txt")
    assert "cannot be written" in refusal(capsys, "contest", "commit", "-o", "none/secret.txt")
    draw = ("contest", "draw", "short.txt", "--count", "1", "-o")
    assert "could be guessed" in refusal(capsys, *draw, "hidden")
    assert "cannot be a folder" in refusal(capsys, *draw, "short.txt")
    assert "has no files NAME.instance.json" in refusal(capsys, "contest", "score", "none", "entries")
    Path("secret.txt").write_text("a secret that is long enough to be one\n")
    assert main(["contest", "draw", "secret.txt", "--count", "1", "-o", "hidden"]) == 0
    assert "has no folders of entrants" in refusal(capsys, "contest", "score", "hidden", "none")
