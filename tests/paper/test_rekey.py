"""Checksums of today in the place of those that an earlier version gave to the same instances."""

from __future__ import annotations

from pathlib import Path

import pytest

from pebbler.instances.files import checksum
from pebbler.instances.workload import Workload
from rekey import Tally, rekey_registry, renamed

BEST_KNOWN = Path("instances", "suites", "best_known", "tiny.json")


def test_an_instance_of_a_network_had_other_checksums() -> None:
    instance = Workload("lenet", 2, "k40").instance("100%")
    found = renamed((instance,))
    assert checksum(instance) in found.values()
    assert checksum(instance) not in found


def test_a_checksum_of_other_costs_is_listed_and_left_alone() -> None:
    today, other = (Workload("lenet", 2, "k40", cudnn=version).instance("100%") for version in ("4", "5.1"))
    tally = Tally()
    assert tally.of(checksum(other), renamed((today,)), "lenet") == checksum(other)
    assert (tally.changed, tally.kept, len(tally.unknown)) == (0, 0, 1)


def test_best_known_values_are_of_instances_of_today(pytestconfig: pytest.Config, tmp_path: Path) -> None:
    committed = (pytestconfig.rootpath / BEST_KNOWN).read_bytes()
    path = tmp_path / "tiny.json"
    path.write_bytes(committed)
    tally = rekey_registry(path)
    assert (tally.changed, tally.unknown) == (0, [])
    assert tally.kept > 0
    assert path.read_bytes() == committed
