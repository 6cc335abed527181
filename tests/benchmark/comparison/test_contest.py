"""Scores of a contest: who gets which points, and what does not count."""

from __future__ import annotations

import os
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest
from msgspec.structs import replace

from pebbler.benchmark.comparison.contest import Score, score_contest
from pebbler.instances.errors import PebblerError
from pebbler.instances.files import sha256_of, write_document, write_instance
from pebbler.instances.instance import Instance
from pebbler.solver.solve import solve
from pebbler.validate.schedule import Schedule

Enter = Callable[[str, str, Schedule], None]


@pytest.fixture
def folder(tight: Instance, chain: Instance, tmp_path: Path) -> Path:
    """Two instances, and nobody who takes part."""
    (tmp_path / "hidden").mkdir()
    for name, instance in (("tight", tight), ("chain", chain)):
        write_instance(replace(instance, name=name), tmp_path / "hidden" / f"{name}.instance.json")
    (tmp_path / "entries").mkdir()
    return tmp_path


@pytest.fixture
def enter(folder: Path) -> Enter:
    def entered(entrant: str, instance: str, schedule: Schedule) -> None:
        place = folder / "entries" / entrant
        place.mkdir(exist_ok=True)
        write_document(schedule, place / f"{instance}.schedule.json")

    return entered


@pytest.fixture
def schedules(tight: Instance, chain: Instance) -> dict[str, dict[str, Schedule]]:
    """Schedules of both instances by two methods, under the names of the files."""
    return {
        method: {
            name: replace(found, instance=name)
            for name, instance in (("tight", tight), ("chain", chain))
            for found in [solve(instance, method).schedule]
            if found is not None
        }
        for method in ("modnn", "save-on-cpu-rule")
    }


def scored(folder: Path) -> dict[str, Score]:
    return {score.entrant: score for score in score_contest(folder / "hidden", folder / "entries")}


def test_points_are_the_shares_of_the_shortest(
    folder: Path, enter: Enter, schedules: dict[str, dict[str, Schedule]]
) -> None:
    for method, found in schedules.items():
        for name, schedule in found.items():
            enter(method, name, schedule)
    spans = {
        method: {name: s.makespan_ns for name, s in found.items()} for method, found in schedules.items()
    }
    assert spans["save-on-cpu-rule"]["tight"] > spans["modnn"]["tight"]
    first, second = scored(folder).values()
    assert [first.entrant, second.entrant] == ["modnn", "save-on-cpu-rule"]
    assert (first.rank, second.rank, first.points) == (1, 2, 100)
    assert (
        second.points
        == sum(
            Fraction(100 * spans["modnn"][name], spans["save-on-cpu-rule"][name])
            for name in ("tight", "chain")
        )
        / 2
    )
    assert (first.shortest, first.valid, first.invalid, first.missing) == (2, 2, 0, 0)
    assert first.median_gap is not None
    assert [*scored(folder).values()] == [first, second]


def test_the_same_points_are_the_same_rank(
    folder: Path, enter: Enter, schedules: dict[str, dict[str, Schedule]]
) -> None:
    for entrant, method in (("b", "modnn"), ("a", "modnn"), ("c", "save-on-cpu-rule")):
        enter(entrant, "tight", schedules[method]["tight"])
    assert [(score.rank, score.entrant) for score in scored(folder).values()] == [
        (1, "a"),
        (1, "b"),
        (3, "c"),
    ]


def test_what_does_not_count_gives_no_points(
    folder: Path, enter: Enter, schedules: dict[str, dict[str, Schedule]]
) -> None:
    good = schedules["modnn"]["tight"]
    enter(
        "good", "tight", replace(good, instance_sha256=sha256_of(folder / "hidden" / "tight.instance.json"))
    )
    enter("faster", "tight", replace(good, makespan_ns=1))
    enter("elsewhere", "tight", replace(good, instance_sha256="0" * 64))
    enter(
        "paged",
        "tight",
        replace(
            good,
            memory_model="divisible",
            residences=tuple(replace(stay, offset=None) for stay in good.residences),
        ),
    )
    enter("broken", "tight", good)
    (folder / "entries" / "broken" / "tight.schedule.json").write_text("{")
    (folder / "entries" / "absent").mkdir()
    (folder / "entries" / "readme.txt").touch()
    scores = scored(folder)
    assert scores["good"].points == 50
    assert scores["good"].judged["chain"].reason == "missing"
    assert [score.points for name, score in scores.items() if name != "good"] == [0] * 5
    assert {name: (score.invalid, score.missing) for name, score in scores.items()} == {
        "good": (0, 1),
        "absent": (0, 2),
        **dict.fromkeys(("faster", "elsewhere", "paged", "broken"), (1, 1)),
    }
    reasons = {name: score.judged["tight"].reason or "" for name, score in scores.items()}
    assert "makespan" in reasons["faster"]
    assert "sha256" in reasons["elsewhere"]
    assert reasons["paged"] == "its memory model is divisible, and not contiguous"
    assert "is not a schedule" in reasons["broken"]


def test_only_a_file_of_its_own_counts(
    folder: Path, enter: Enter, schedules: dict[str, dict[str, Schedule]]
) -> None:
    enter("good", "tight", schedules["modnn"]["tight"])
    copied, strange = folder / "entries" / "copied", folder / "entries" / "strange"
    copied.mkdir()
    (copied / "tight.schedule.json").symlink_to("../good/tight.schedule.json")
    strange.mkdir()
    os.mkfifo(strange / "tight.schedule.json")  # nobody writes into it: whoever reads it waits for ever
    (strange / "chain.schedule.json").mkdir()
    scores = scored(folder)
    assert (scores["good"].valid, scores["copied"].invalid, scores["strange"].invalid) == (1, 1, 2)
    for entrant in ("copied", "strange"):
        reason = scores[entrant].judged["tight"].reason or ""
        assert reason.endswith("is a link, a folder, a pipe or a device; only a file of its own counts")


def test_instances_are_those_that_were_drawn(
    folder: Path, enter: Enter, schedules: dict[str, dict[str, Schedule]]
) -> None:
    enter("good", "tight", schedules["modnn"]["tight"])
    hidden = folder / "hidden"
    sums = {file.name: sha256_of(file) for file in hidden.glob("*.instance.json")}

    def told() -> str:
        (hidden / "SHA256SUMS").write_text("".join(f"{of}  {name}\n" for name, of in sums.items()))
        with pytest.raises(PebblerError) as refused:
            scored(folder)
        return str(refused.value)

    (hidden / "SHA256SUMS").write_text("".join(f"{of}  {name}\n" for name, of in sums.items()))
    assert scored(folder)["good"].valid == 1
    sums["another.instance.json"] = "0" * 64
    assert "hidden has no another.instance.json, which SHA256SUMS lists; draw" in told()
    del sums["another.instance.json"]
    sums["tight.instance.json"] = "0" * 64
    assert "tight.instance.json is not what SHA256SUMS lists; draw the instances again" in told()
    del sums["tight.instance.json"]
    assert "tight.instance.json is not what SHA256SUMS lists" in told()


def test_folders_without_anything_are_refused(folder: Path) -> None:
    with pytest.raises(PebblerError, match="entries has no folders of entrants"):
        scored(folder)
    with pytest.raises(PebblerError, match=r"none has no files NAME\.instance\.json"):
        score_contest(folder / "none", folder / "entries")
