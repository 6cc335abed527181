"""Other projects' files, told apart by what is in them."""

from __future__ import annotations

from pathlib import Path

from ..errors import FormatError
from ..files import read_bytes
from ..instance import Instance
from . import g10, recomputation


def read_foreign(path: str | Path) -> Instance:
    """Read an instance from another project's file.

    A config of G10 gives budgets of both memories. Other files are recomputation problems, whose budget is
    still 0.

    Raises
    ------
    PebblerError
        When the file cannot be read or is of no known format; the sentence names the place.
    """
    data = read_bytes(path)
    if g10.is_config(data):
        return g10.instance_of_config(data, path)
    if data.startswith(b"Kernel ID: "):
        raise FormatError(
            f"{path} has G10's kernels, but no memory and no link; give the config with which gpg wrote it"
        )
    return recomputation.instance_of_data(data, path)
