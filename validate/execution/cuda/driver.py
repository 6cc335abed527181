"""PyCUDA's driver module, and the primary context of a GPU, which a process retains and releases once."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import re
import warnings
from functools import cache
from typing import Any

from ....instances.errors import PebblerError
from ....instances.importers.extras import require_extra

_LIBRARY = "libcuda.so.1"
"""File name of NVIDIA's driver."""


def load_driver() -> Any:
    """Return PyCUDA's driver module.

    Raises
    ------
    PebblerError
        When PyCUDA or NVIDIA's driver is not installed, or the driver is older than PyCUDA needs.
    """
    require_extra("pycuda", "cuda")
    try:
        with warnings.catch_warnings(action="ignore"):  # PyCUDA's guess at what is wrong with the driver
            import pycuda.driver
    except ImportError as error:
        raise PebblerError(_why_not_loaded(" ".join(str(error).split()))) from None
    return pycuda.driver


def start(driver: Any) -> None:
    """Initialise the driver; if the process has done so already, this does nothing.

    Raises
    ------
    PebblerError
        When the driver cannot be initialised; the message has the CUDA versions of the driver and of PyCUDA.
    """
    try:
        driver.init()
    except driver.Error as error:
        said = " ".join(str(error).split())
        found, needed = driver.get_driver_version(), _number(driver.get_version())
        if found < needed or "insufficient" in said:
            raise PebblerError(
                f"NVIDIA's driver is too old: it is for CUDA {_title(found)} and PyCUDA was built for "
                f"{_title(needed)} ({said}); install a newer driver"
            ) from None
        raise PebblerError(
            f"NVIDIA's driver, for CUDA {_title(found)}, finds no GPU that it can use ({said}); if there is "
            "one, restart the machine or install the driver again"
        ) from None


@cache
def primary_context(driver: Any, number: int) -> Any:
    """Return the primary context of a GPU; the first call retains it, the end of the process releases it.

    Raises
    ------
    pycuda.driver.Error
        When CUDA cannot create it.
    """
    context = driver.Device(number).retain_primary_context()
    atexit.register(_release, driver, context)
    return context


def _release(driver: Any, context: Any) -> None:
    """Release a primary context.

    PyCUDA releases it only if it is current, and only on request. Without this call, PyCUDA would detach the
    context as if it had created it. CUDA leaves a released context on the thread's stack, and so does PyCUDA.
    """
    with contextlib.suppress(driver.Error):  # of a context that has failed: the process ends
        context.push()
        context.detach()
        ctypes.CDLL(_LIBRARY).cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))


def _why_not_loaded(said: str) -> str:
    """Return why PyCUDA's module cannot be imported."""
    try:
        library = ctypes.CDLL(_LIBRARY)
    except OSError:
        return f"PyCUDA cannot be loaded ({said}); install NVIDIA's driver"
    if missing := re.search(r"undefined symbol: (cu[A-Z]\w*)", said):
        found = ctypes.c_int()
        library.cuDriverGetVersion(ctypes.byref(found))
        return (
            f"NVIDIA's driver is too old: it is for CUDA {_title(found.value)} and has no {missing[1]}; "
            "install one for the version of CUDA that PyCUDA was built for, or a newer one"
        )
    return f"PyCUDA cannot be loaded ({said}); build it again for this Python and this driver"


def _number(version: tuple[int, ...]) -> int:
    """Return a version in the driver's count: 13.0 is 13000."""
    return version[0] * 1000 + version[1] * 10


def _title(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"
