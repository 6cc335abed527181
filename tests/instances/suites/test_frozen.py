"""Suites whose instances are files that never change."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from hashlib import sha256
from importlib import resources
from pathlib import Path

import msgspec
import pytest

from pebbler.instances.errors import PebblerError
from pebbler.instances.files import encode
from pebbler.instances.instance import Instance
from pebbler.instances.memory import least_budget
from pebbler.instances.suites.manifest import write_suite
from pebbler.instances.suites.suite import Frozen, Member, find_suite, list_suites, members

from ...samples import counts

LISTED = {"pebbler-2026": "0f96a7e0d28d7bd9bacfc90c6f310e9c1529d85ae4b859079f4eb6eb7fd52d53"}
"""SHA-256 of all names and checksums of each frozen suite, which never changes."""

ENDING = ".instance.json.gz"


def frozen() -> list[tuple[Member, Frozen]]:
    """Every frozen instance, with what is known of it."""
    suites = map(find_suite, LISTED)
    return [(one, one.frozen) for suite in suites for one in members(suite) if one.frozen is not None]


def test_the_lists_are_as_they_were_frozen() -> None:
    assert {name for name in list_suites() if find_suite(name).frozen} == set(LISTED)
    for suite, pinned in LISTED.items():
        found = find_suite(suite)
        assert not found.drawn
        assert not found.real
        lines = [
            f"{name} {part.memory} {checksum}\n"
            for part in found.frozen
            for name, checksum in part.instances.items()
        ]
        assert sha256("".join(lines).encode()).hexdigest() == pinned, "what is frozen was changed"


def test_every_file_has_the_bytes_that_are_listed() -> None:
    for member, known in frozen():
        assert sha256(known.content(member.name)).hexdigest() == known.instances[member.name]


def test_the_folder_has_what_is_listed_and_is_small() -> None:
    files = list(resources.files("pebbler.instances.suites").joinpath("frozen").iterdir())
    assert sorted(file.name for file in files) == sorted(one.name + ENDING for one, _ in frozen())
    assert sum(len(file.read_bytes()) for file in files) < 20e6


@pytest.mark.parametrize("few", counts(10, 1000))
def test_what_is_frozen_is_read_and_would_be_written_with_the_same_bytes(few: int) -> None:
    chosen = frozen()
    for member, known in chosen[:: max(len(chosen) // few, 1)]:
        instance = member.build()
        assert instance.name == member.name
        assert encode(instance) == known.content(member.name)
        assert least_budget(instance) <= instance.budget_bytes
        assert instance.gpus == 1


def test_every_kind_has_what_it_is_for() -> None:
    has: dict[str, Callable[[Instance], bool]] = {
        "parts": lambda instance: any(block.tensor is not None for block in instance.blocks),
        "recompute": lambda instance: any(task.recomputable for task in instance.tasks),
        "host": lambda instance: instance.has_host_budget,
        "steady": lambda instance: bool(instance.carried),
        "link": lambda instance: instance.is_coupled,
        "scaling": lambda instance: len(instance.tasks) > 900,
        "pack": lambda instance: all(block.offload_ns is None for block in instance.blocks),
        "torch": lambda instance: "with the optimizer's step" in instance.meta["source"],
    }
    for suite in LISTED:
        parts = find_suite(suite).frozen
        assert has.keys() < {part.kind for part in parts}
        assert len({(part.kind, part.memory) for part in parts}) == len(parts)
    for kind, holds in has.items():
        smallest = min(
            (member for member, known in frozen() if known.kind == kind),
            key=lambda member: len(member.frozen.content(member.name)) if member.frozen else 0,
        )
        assert holds(smallest.build()), smallest.name


@pytest.mark.parametrize("few", counts(10, 1000))
def test_a_frozen_suite_is_written_byte_for_byte(
    few: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = frozen()[:: max(len(frozen()) // few, 1)]
    monkeypatch.setattr(
        "pebbler.instances.suites.manifest.members", lambda _: iter([one for one, _ in chosen])
    )
    manifest = write_suite("pebbler-2026", tmp_path)
    for entry, (member, known) in zip(manifest.instances, chosen, strict=True):
        assert (tmp_path / entry.file).read_bytes() == known.content(member.name)
        assert entry.sha256 == known.instances[entry.name]
        assert (entry.kind, entry.memory_model) == (known.kind, known.memory)


@pytest.mark.parametrize("damage", [None, b"", b"{}", gzip.compress(b"{}", mtime=0)])
def test_a_file_that_is_missing_or_damaged_is_refused(
    damage: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    member, _ = frozen()[0]
    (tmp_path / "frozen").mkdir()
    if damage is not None:
        (tmp_path / "frozen" / (member.name + ENDING)).write_bytes(damage)
    monkeypatch.setattr("pebbler.instances.suites.suite.resources.files", lambda _: tmp_path)
    with pytest.raises(PebblerError, match="is not as it was frozen; install pebbler again"):
        member.build()


@pytest.mark.parametrize("checksum", ["", "0" * 63, "G" * 64])
def test_a_mistake_in_a_list_is_found(checksum: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(
            {"kind": "x", "purpose": "y", "memory": "paged", "instances": {"z": checksum}}, Frozen
        )
