"""Ways in which a unit goes wrong in its process: each takes what the unit calls, and what that takes."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from pebbler.benchmark.gpu.measure import Stage
from pebbler.benchmark.gpu.stages import Unit
from pebbler.benchmark.gpu.study import Study
from pebbler.instances.errors import PebblerError
from pebbler.validate.execution.device import DeviceError

Call = Callable[..., str | None]


def refuse(*_: Any) -> str | None:
    raise PebblerError("the device has no room for it")


def fail(*_: Any) -> str | None:
    raise DeviceError("an illegal address was met")


def lack_a_library(*_: Any) -> str | None:
    raise ImportError("libcudart.so.13: cannot open shared object file")


def break_down(*_: Any) -> str | None:
    raise KeyError("surprise")


def crash(*_: Any) -> str | None:
    os.kill(os.getpid(), signal.SIGABRT)
    return None


def crash_in_the_end(call: Call, *arguments: Any) -> str | None:
    call(*arguments)
    return crash()


def hang(*_: Any) -> str | None:
    print("hanging", file=sys.stderr, flush=True)
    time.sleep(3600)
    return None


def complain(call: Call, *arguments: Any) -> str | None:
    call(*arguments)
    return "the numbers are wrong"


def lose_the_context(call: Call, *arguments: Any) -> str | None:
    """Let the fake driver fail at the third launch: the context is lost from then on."""
    driver = ctypes.CDLL("libcuda.so.1", mode=ctypes.RTLD_GLOBAL)
    driver.fakecuda_fail(ctypes.c_longlong(3), ctypes.c_longlong(-1))
    return call(*arguments)


def warn(call: Call, *arguments: Any) -> str | None:
    """Log a message of each kind, and then work."""
    log = logging.getLogger("pebbler.benchmark.gpu")
    log.info("%d of %d", 1, 2)
    log.warning("%s is slow", "the link")
    return call(*arguments)


def touch(path: Path) -> str | None:
    """Leave a result."""
    path.write_text("{}")
    return None


def broken(unit: Unit, fault: Callable[..., str | None]) -> Unit:
    """Return a unit that goes wrong."""
    return replace(unit, call=fault, arguments=(unit.call, *unit.arguments))


class Broken:
    """The units of a stage, of which those with a word in their name go wrong."""

    def __init__(self, stage: Stage, fault: Callable[..., str | None], word: str) -> None:
        self._stage, self._fault, self._word = stage, fault, word

    def __call__(self, study: Study) -> Iterator[Unit]:
        for unit in self._stage.units(study):
            yield broken(unit, self._fault) if self._word in unit.name else unit
