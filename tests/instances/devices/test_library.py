"""Versions of cuDNN: which a device has, and which are refused."""

import pytest

from pebbler.instances.devices.device import find_device, list_devices
from pebbler.instances.devices.library import LIBRARIES, read_library
from pebbler.instances.errors import PebblerError
from pebbler.instances.workload import Workload


def test_a_device_has_the_newest_version_of_its_first_year():
    found = {device.name: device.cudnn for device in list_devices()}
    expected = {"K40": "4", "TitanX": "4", "P100": "5.1", "V100": "7", "A100": "8", "H100": "8", "H200": "9"}
    assert {name: found[name] for name in expected} == expected


@pytest.mark.parametrize("device", list_devices(), ids=lambda device: device.name)
def test_no_device_has_a_version_that_is_older_than_it(device):
    assert read_library(device.cudnn, device.architecture) == device.cudnn


def test_another_version_changes_nothing_but_the_library():
    k40 = find_device("K40", "5.0")
    assert k40.cudnn == "5.0"
    assert (k40.name, k40.peak_flops) == ("K40", find_device("K40").peak_flops)


@pytest.mark.parametrize(
    ("device", "cudnn", "message"),
    [
        ("K40", "3", r"there is no cuDNN '3'; there are 4, 5\.0, 5\.1, 6, 7, 8, 9"),
        ("K40", "cudnn5", r"there is no cuDNN 'cudnn5'"),
        ("V100", "5.1", r"cuDNN 5\.1 is older than volta; there are 7, 8, 9"),
        ("B200", "8", r"cuDNN 8 is older than blackwell; there are 9"),
    ],
)
def test_unknown_and_older_versions_are_refused_with_the_list(device, cudnn, message):
    with pytest.raises(PebblerError, match=message):
        find_device(device, cudnn)
    with pytest.raises(PebblerError, match=message):
        Workload("lenet", 4, device, cudnn=cudnn).instance("1GiB")


def test_versions_are_in_order():
    assert LIBRARIES == ("4", "5.0", "5.1", "6", "7", "8", "9")
