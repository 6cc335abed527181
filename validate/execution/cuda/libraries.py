"""CUDA's libraries, called through ctypes: found, loaded, and with every status checked."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ....instances.errors import PebblerError
from ..device import DeviceError


class Library:
    """A shared library whose calls return a status, 0 when all went well.

    Parameters
    ----------
    title
        Name of the library for people.
    names
        File names to look for, the best first: in the system's folders, then in the packages from PyPI.
    explain
        Function that returns the text of a status.
    hint
        How to install the library.

    Raises
    ------
    PebblerError
        When the library is missing.
    """

    def __init__(
        self,
        title: str,
        names: Sequence[str],
        explain: Callable[[ctypes.CDLL, int], str],
        hint: str,
    ) -> None:
        self.title = title
        self.loaded = _load(title, names, hint)
        self._explain = explain
        self._hint = hint

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function.

        Raises
        ------
        DeviceError
            When the status is an error.
        """
        if status := self.status(name, *arguments):
            raise DeviceError(f"{self.title}: {name} failed: {self._explain(self.loaded, status)} ({status})")

    def status(self, name: str, *arguments: Any) -> int:
        """Call a function and return its status."""
        return int(getattr(self.loaded, name)(*arguments))

    def declare(self, **signatures: Sequence[Any]) -> None:
        """Declare the types of functions' arguments.

        Raises
        ------
        PebblerError
            When the library does not have one of them.
        """
        for name, types in signatures.items():
            try:
                function = getattr(self.loaded, name)
            except AttributeError:
                raise PebblerError(f"{self.title} has no {name}; {self._hint}") from None
            function.argtypes, function.restype = list(types), ctypes.c_int

    def create(self, name: str) -> ctypes.c_void_p:
        """Call a function that creates an object and returns its handle."""
        handle = ctypes.c_void_p()
        self.call(name, ctypes.byref(handle))
        return handle


def load_cuda(hint: str = "install NVIDIA's driver") -> Library:
    """Return the driver, for the calls that PyCUDA does not wrap; they work in the current context.

    Parameters
    ----------
    hint
        How to install a driver that has these calls.

    Raises
    ------
    PebblerError
        When the driver is missing.
    """
    library = Library("the CUDA driver", ["libcuda.so.1"], _explain, hint)
    library.declare(cuGetErrorString=[ctypes.c_int, ctypes.c_void_p])
    return library


def _explain(library: ctypes.CDLL, status: int) -> str:
    text = ctypes.c_char_p()
    library.cuGetErrorString(status, ctypes.byref(text))
    return (text.value or b"unknown error").decode()


def _load(title: str, names: Sequence[str], hint: str) -> ctypes.CDLL:
    """Look in the present folders of LD_LIBRARY_PATH, then in the system's folders, then in packages."""
    folders = [Path(place) for place in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if place]
    named = [str(folder / name) for name in names for folder in folders if (folder / name).exists()]
    packaged = [
        str(file)
        for entry in sys.path
        if (folder := Path(entry, "nvidia")).is_dir()
        for name in names
        for file in sorted(folder.glob(f"*/lib/{name}"))
    ]
    for name in [*named, *names, *packaged]:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise PebblerError(f"{title} ({names[0]}) cannot be loaded; {hint}")
