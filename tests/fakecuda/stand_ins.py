"""Stand-ins for cupti-python and nvidia-ml-py, which need a GPU: what is called of them, and how they fail.

Parameters and classes are those of the packages (`test_stand_ins` compares them where these are installed). A
stand-in is installed in place of its package with `install`.
"""

from __future__ import annotations

import enum
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


def install(monkeypatch: pytest.MonkeyPatch, name: str, names: dict[str, Any]) -> ModuleType:
    """Let a module be there."""
    module = ModuleType(name)
    module.__spec__ = ModuleSpec(name, None)
    vars(module).update(names)
    monkeypatch.setitem(sys.modules, name, module)
    return module


def install_broken(monkeypatch: pytest.MonkeyPatch, folder: Path, package: str, statement: str) -> None:
    """Let a package be there whose import executes a statement that fails."""
    (folder / package).mkdir()
    (folder / package / "__init__.py").write_text("", encoding="utf-8")
    (folder / package / f"{package}.py").write_text(f"{statement}\n", encoding="utf-8")
    monkeypatch.syspath_prepend(folder)
    for name in (package, f"{package}.{package}"):
        monkeypatch.setitem(sys.modules, name, None)  # so that it is gone afterwards
        del sys.modules[name]


# --- CUPTI --------------------------------------------------------------------------------------------


class Result(enum.IntEnum):
    """Some statuses of CUPTI."""

    ERROR_INVALID_PARAMETER = 1
    ERROR_INSUFFICIENT_PRIVILEGES = 35
    ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED = 39


class cuptiError(Exception):  # noqa: N801
    """A status of CUPTI that is no success."""

    def __init__(self, status: int) -> None:
        self.status = status
        super().__init__(f"{Result(status).name} ({status})")


class ActivityKind(enum.IntEnum):
    """Some kinds of records."""

    MEMCPY = 1
    CONCURRENT_KERNEL = 10


class ActivityKernel10:
    """The record of a kernel; here only what Pebbler reads."""

    kind = ActivityKind.CONCURRENT_KERNEL

    def __init__(self, name: str, start: int) -> None:
        self.name = name
        self.start, self.end = start, start + 500
        self.grid_x, self.grid_y, self.grid_z = 8, 2, 1
        self.block_x, self.block_y, self.block_z = 256, 1, 1
        self.registers_per_thread = 32
        self.static_shared_memory, self.dynamic_shared_memory = 1024, 64


class ActivityMemcpy6:
    """The record of a copy, which has no name."""

    kind = ActivityKind.MEMCPY

    def __init__(self, start: int) -> None:
        self.start, self.end = start, start + 100


class Cupti:
    """A CUPTI that has two kernels and a copy at every flush, the later kernel first.

    Parameters
    ----------
    refuses
        The status with which it refuses to record; None when it does not.
    missing
        What its first call raises for want of its library; None where it is there.
    delivers
        Whether what it records ever comes.

    Attributes
    ----------
    calls
        What it was asked, in order.
    """

    def __init__(
        self, *, refuses: Result | None = None, missing: Exception | None = None, delivers: bool = True
    ) -> None:
        self.calls: list[str] = []
        self._refuses = refuses
        self._missing = missing
        self._delivers = delivers
        self._enabled: set[int] = set()
        self._callbacks: tuple[Callable[[], tuple[int, int]], Callable[[list[Any]], None]] | None = None

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Take the package's place."""
        names = {"Result": Result, "cuptiError": cuptiError, "ActivityKind": ActivityKind}
        names |= {
            name: getattr(self, name)
            for name in (
                "activity_enable",
                "activity_disable",
                "activity_flush_all",
                "activity_register_callbacks",
            )
        }
        module = install(monkeypatch, "cupti.cupti", names)
        install(monkeypatch, "cupti", {"cupti": module})

    def activity_register_callbacks(
        self,
        func_buffer_requested: Callable[[], tuple[int, int]],
        func_buffer_completed: Callable[[list[Any]], None],
    ) -> None:
        """Keep what gives room for records, and what takes them."""
        if self._missing is not None:
            raise self._missing
        self._callbacks = func_buffer_requested, func_buffer_completed

    def activity_enable(self, kind: int) -> None:
        """Record a kind from now on."""
        if self._refuses is not None:
            raise cuptiError(self._refuses)
        self.calls.append("enable")
        self._enabled.add(int(kind))

    def activity_disable(self, kind: int) -> None:
        """Record a kind no more."""
        self.calls.append("disable")
        if int(kind) not in self._enabled:
            raise cuptiError(Result.ERROR_INVALID_PARAMETER)
        self._enabled.remove(int(kind))

    def activity_flush_all(self, flag: int) -> None:
        """Give all records to the callback, on a thread of its own, and wait for that."""
        self.calls.append("flush")
        if self._callbacks is None or flag not in (0, 1):
            raise cuptiError(Result.ERROR_INVALID_PARAMETER)
        if not self._delivers:
            return
        requested, completed = self._callbacks
        size, most = requested()
        assert (type(size), type(most)) == (int, int)
        assert size > 0
        records = [ActivityKernel10("second", 2000), ActivityMemcpy6(0), ActivityKernel10("first", 1000)]
        thread = threading.Thread(
            target=completed, args=([one for one in records if one.kind in self._enabled or most],)
        )
        thread.start()
        thread.join()


# --- NVML ---------------------------------------------------------------------------------------------

ERRORS = {
    "Uninitialized": (1, "Uninitialized"),
    "InvalidArgument": (2, "Invalid Argument"),
    "NotSupported": (3, "Not Supported"),
    "NotFound": (6, "Not Found"),
    "DriverNotLoaded": (9, "Driver Not Loaded"),
    "LibraryNotFound": (12, "NVML Shared Library Not Found"),
}
"""Some of its errors, with their numbers and texts."""


class NVMLError(Exception):
    """An error of NVML, made by its number, of the class that it has for that."""

    value: int
    classes: dict[int, type[NVMLError]] = {}  # noqa: RUF012

    def __new__(cls, value: int) -> NVMLError:
        """Make one of the class of its number."""
        made = Exception.__new__(NVMLError.classes.get(value, cls))
        made.value = value
        return made

    def __str__(self) -> str:
        return next(text for number, text in ERRORS.values() if number == self.value)


for _name, (_number, _) in ERRORS.items():
    NVMLError.classes[_number] = type(f"NVMLError_{_name}", (NVMLError,), {})


class Nvml:
    """An NVML with one GPU.

    Parameters
    ----------
    bus
        Where the GPU is.
    millijoules
        What its counter reads, one time after the other; None where it does not count.
    fails
        The error, of `ERRORS`, that NVML begins with; None where it begins.
    """

    def __init__(
        self,
        millijoules: Iterable[int] | None = (),
        *,
        bus: str = "0000:00:00.0",
        fails: str | None = None,
    ) -> None:
        self._bus = bus
        self._counter: Iterator[int] | None = None if millijoules is None else iter(millijoules)
        self._fails = fails
        self._users = 0
        self._gpu = object()

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Take the package's place."""
        names = {one.__name__: one for one in NVMLError.classes.values()} | {"NVMLError": NVMLError}
        names |= {name: getattr(self, name) for name in dir(self) if name.startswith("nvml")}
        install(monkeypatch, "pynvml", names)

    def nvmlInit(self) -> None:  # noqa: N802
        """Begin."""
        self._require(self._fails is None, self._fails)
        self._users += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        """End what an `nvmlInit` began."""
        self._require(self._users > 0, "Uninitialized")
        self._users -= 1

    def nvmlDeviceGetHandleByPciBusId(self, pciBusId: str) -> object:  # noqa: N802, N803
        """Return the GPU."""
        self._require(self._users > 0, "Uninitialized")
        self._require(isinstance(pciBusId, str), "InvalidArgument")
        self._require(pciBusId == self._bus, "NotFound")
        return self._gpu

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: object) -> int:  # noqa: N802
        """Return what the counter reads."""
        self._require(self._users > 0, "Uninitialized")
        self._require(handle is self._gpu, "InvalidArgument")
        self._require(self._counter is not None, "NotSupported")
        assert self._counter is not None
        return next(self._counter)

    def _require(self, holds: bool, error: str | None) -> None:
        if not holds:
            assert error is not None
            raise NVMLError(ERRORS[error][0])
