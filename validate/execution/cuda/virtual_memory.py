"""Pages of device memory mapped to consecutive addresses, by CUDA's virtual memory calls.

PyCUDA does not wrap them; they are called through ctypes, in the context that PyCUDA has made current.
"""

from __future__ import annotations

import ctypes as c
from collections.abc import Sequence

from ..device import DeviceError
from .libraries import load_cuda

_PINNED = _DEVICE = 1
"""CUDA's numbers for pinned allocations and for memory of a device."""

_MINIMUM = 0
"""CUDA's number for the minimum granularity."""

_READ_AND_WRITE = 3
"""CUDA's number for access by reads and writes."""


class _Location(c.Structure):
    _fields_ = (("type", c.c_int), ("id", c.c_int))


class _Property(c.Structure):
    """``CUmemAllocationProp``."""

    _fields_ = (
        ("type", c.c_int),
        ("handle_types", c.c_int),
        ("location", _Location),
        ("windows_handle", c.c_void_p),
        ("flags", c.c_ubyte * 8),
    )


class _Access(c.Structure):
    """``CUmemAccessDesc``."""

    _fields_ = (("location", _Location), ("flags", c.c_int))


class VirtualMemory:
    """Pages and reserved addresses of a device, released by `close`.

    Parameters
    ----------
    device
        Number of the device.
    """

    def __init__(self, device: int) -> None:
        self._library = load_cuda()
        address, size, pointer = c.c_uint64, c.c_size_t, c.c_void_p
        self._library.declare(
            cuMemGetAllocationGranularity=[pointer, pointer, c.c_int],
            cuMemCreate=[pointer, size, pointer, c.c_uint64],
            cuMemRelease=[c.c_uint64],
            cuMemAddressReserve=[pointer, size, size, address, c.c_uint64],
            cuMemAddressFree=[address, size],
            cuMemMap=[address, size, size, c.c_uint64, c.c_uint64],
            cuMemUnmap=[address, size],
            cuMemSetAccess=[address, size, pointer, size],
        )
        place = _Location(_DEVICE, device)
        self._property = _Property(type=_PINNED, location=place)
        self._access = _Access(location=place, flags=_READ_AND_WRITE)
        self._page_bytes = 0
        self._pages: list[int] = []
        self._reserved: list[tuple[int, int]] = []
        self._mapped: dict[int, int] = {}

    def create(self, count: int, page_bytes: int) -> None:
        """Allocate pages, numbered from 0.

        Raises
        ------
        DeviceError
            When there is not enough memory, or the device cannot map pages of that size.
        """
        least = c.c_size_t()
        self._library.call("cuMemGetAllocationGranularity", c.byref(least), c.byref(self._property), _MINIMUM)
        if page_bytes % least.value:
            raise DeviceError(f"the device maps pages of {least.value} bytes, not of {page_bytes}")
        self._page_bytes = page_bytes
        for _ in range(count):
            handle = c.c_uint64()
            self._library.call("cuMemCreate", c.byref(handle), page_bytes, c.byref(self._property), 0)
            self._pages.append(handle.value)

    def reserve(self, size: int) -> int:
        """Reserve addresses without memory; `size` is rounded up to whole pages."""
        size = -(-size // self._page_bytes) * self._page_bytes
        address = c.c_uint64()
        self._library.call("cuMemAddressReserve", c.byref(address), size, 0, 0, 0)
        self._reserved.append((address.value, size))
        return int(address.value)

    def map(self, address: int, pages: Sequence[int]) -> None:
        """Map these pages, in order, at addresses; another mapping there is removed first, the same stays."""
        size = self._page_bytes
        whole = size * len(pages)
        wanted = zip(range(address, address + whole, size), pages, strict=True)
        if not (changed := [(at, page) for at, page in wanted if self._mapped.get(at) != page]):
            return
        for at, page in changed:
            if at in self._mapped:
                self._library.call("cuMemUnmap", at, size)
                del self._mapped[at]
            self._library.call("cuMemMap", at, size, 0, self._pages[page], 0)
            self._mapped[at] = page
        self._library.call("cuMemSetAccess", address, whole, c.byref(self._access), 1)

    def close(self) -> None:
        """Release everything; no work uses it any more."""
        while self._mapped:
            address, _ = self._mapped.popitem()
            self._library.call("cuMemUnmap", address, self._page_bytes)
        while self._reserved:
            self._library.call("cuMemAddressFree", *self._reserved.pop())
        while self._pages:
            self._library.call("cuMemRelease", self._pages.pop())
