"""Other projects' files, told apart by what is in them."""

from __future__ import annotations

from pathlib import Path

from ..devices.device import DEVICE_OF_TODAY, find_device
from ..errors import FormatError, PebblerError
from ..files import read_bytes
from ..instance import Instance
from . import fx, g10, recomputation


def read_foreign(path: str | Path, device: str | None = None) -> Instance:
    """Read an instance from another project's file.

    A config of G10 gives budgets of both memories. In other files, the budget is still 0: joint graphs of
    torch, and recomputation problems.

    Parameters
    ----------
    path
        The file.
    device
        Name of the device that a joint graph of torch runs on, by default one of today. Other files have
        times of their own.

    Raises
    ------
    PebblerError
        When the file cannot be read or is of no known format; the sentence names the place.
    """
    data = read_bytes(path)
    if fx.is_joint(data):
        return fx.instance_of_joint(data, path, find_device(device or DEVICE_OF_TODAY))
    if device is not None:
        raise PebblerError(f"{path} has times of its own; leave the device out")
    if g10.is_config(data):
        return g10.instance_of_config(data, path)
    if data.startswith(b"Kernel ID: "):
        raise FormatError(
            f"{path} has G10's kernels, but no memory and no link; give the config with which gpg wrote it"
        )
    return recomputation.instance_of_data(data, path)
