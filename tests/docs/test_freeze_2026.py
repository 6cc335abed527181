"""The script that says how the instances of pebbler-2026 were made says so of those that there are."""

from __future__ import annotations

import gzip
import re
from hashlib import sha256
from pathlib import Path

import pytest

import freeze_2026
from freeze_2026 import PURPOSES, Choice, choices, entries, main
from pebbler.instances.files import checksum
from pebbler.instances.suites.generators import VERSION
from pebbler.instances.suites.suite import Frozen, find_suite

from ..samples import counts


@pytest.fixture(scope="module")
def parts() -> tuple[Frozen, ...]:
    return find_suite("pebbler-2026").frozen


def is_drawn(choice: Choice) -> bool:
    """Whether it is random; the others have a network with a batch."""
    return re.search(r"-b\d+-", choice.name) is None


def test_the_script_names_what_is_frozen(parts: tuple[Frozen, ...]) -> None:
    listed = {
        name: (part.kind, part.memory) for part in parts for name in part.instances if part.kind != "torch"
    }
    assert {choice.name: (choice.kind, choice.memory) for choice in choices()} == listed
    assert {part.kind: part.purpose for part in parts} == PURPOSES


@pytest.mark.skipif(VERSION != 1, reason="the instances were drawn with version 1 of the generators")
@pytest.mark.parametrize("few", counts(6, 1000))
def test_random_instances_are_made_again_with_the_same_bytes(few: int, parts: tuple[Frozen, ...]) -> None:
    sums = {name: found for part in parts for name, found in part.instances.items()}
    drawn = [choice for choice in choices() if is_drawn(choice) and (choice.kind != "scaling" or few > 100)]
    assert len(drawn) > 30
    for choice in drawn[:: max(len(drawn) // few, 1)]:
        assert checksum(choice.instance()) == sums[choice.name], choice.name


def test_it_writes_files_and_prints_their_checksums(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = [choice for choice in choices("random") if "u-shaped" in choice.name]
    monkeypatch.setattr(freeze_2026, "choices", lambda _: chosen)
    main(["-o", str(tmp_path / "made")])
    made = []
    for choice in chosen:
        data = gzip.decompress((tmp_path / "made" / f"{choice.name}.instance.json.gz").read_bytes())
        made.append((choice, sha256(data).hexdigest()))
    assert capsys.readouterr().out == entries(made)
    assert f'"{chosen[0].name}" = "{made[0][1]}"\n' in entries(made)
