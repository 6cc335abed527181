"""Limits of multiprocessors: each figure with a source, and what follows from them."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from importlib import resources

import pytest

from pebbler.instances.devices.device import find_device, list_devices
from pebbler.instances.devices.occupancy import execution_limits
from pebbler.instances.errors import PebblerError


def test_every_packaged_device_of_nvidia_has_limits_with_sources() -> None:
    text = resources.files("pebbler.instances.devices").joinpath("occupancy.toml").read_text(encoding="utf-8")
    tables = tomllib.loads(text).values()
    assert sorted(name for table in tables for name in table["devices"]) == sorted(
        d.name for d in list_devices() if d.architecture != "cdna3"
    )
    for table in tables:
        assert all(len(figure["source"]) > 10 for key, figure in table.items() if key != "devices")


def test_the_gpus_of_the_paper_have_its_cores_and_clocks() -> None:
    """GLP4NN, Table 3: cores, and the base clock of the K40C."""
    cores = {"K40": (15, 192), "P100": (56, 64), "TitanXp": (30, 128)}
    for device, (processors, lanes) in cores.items():
        limits = execution_limits(find_device(device))
        assert (limits.multiprocessors, limits.lanes) == (processors, lanes)
    assert execution_limits(find_device("K40")).clock_hz == pytest.approx(0.745e9, rel=1e-3)


def test_a_device_of_ones_own_and_one_of_amd_have_none() -> None:
    with pytest.raises(PebblerError, match="'MI300X' holds is not known; take K40, "):
        execution_limits(find_device("MI300X"))
    with pytest.raises(PebblerError, match=r"'mine' holds is not known; take K40, .*H200"):
        execution_limits(replace(find_device("K40"), name="mine"))
