"""Memory of the CPU backend: anonymous mappings, pages of a memfd mapped anywhere, arrays by address."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....instances.errors import PebblerError
from ..device import DeviceError

_PROT_NONE, _PROT_READ_WRITE = 0, mmap.PROT_READ | mmap.PROT_WRITE
"""Protections of mappings."""

_MAP_FIXED = 0x10
"""Flag of a mapping at a given address."""

_MAP_NO_RESERVE = 0x4000
"""Flag that no memory is set aside for what is mapped, on Linux."""

_MAP_NOW = getattr(mmap, "MAP_POPULATE", 0)
"""Flag to look up all of the system's smaller pages when mapping, not when a kernel first touches them."""

_FAILED = ctypes.c_void_p(-1).value
"""Address that mmap returns on failure."""


def array_at(address: int, shape: tuple[int, ...], dtype: Any = np.float32) -> NDArray[Any]:
    """Return the array that lies at an address."""
    size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    return np.frombuffer((ctypes.c_char * size).from_address(address), dtype).reshape(shape)


def available_bytes() -> int:
    """Return the bytes that this process may still allocate, by the machine or by its control group.

    The lesser of the two numbers counts.
    """
    pages = "SC_AVPHYS_PAGES" if "SC_AVPHYS_PAGES" in os.sysconf_names else "SC_PHYS_PAGES"
    free = os.sysconf(pages) * os.sysconf("SC_PAGE_SIZE")
    for line in _lines("/proc/meminfo"):
        if line.startswith("MemAvailable:"):
            free = int(line.split()[1]) * 1024
    limit, used = (_lines(f"/sys/fs/cgroup/memory.{word}") for word in ("max", "current"))
    if limit and used and limit[0].isdecimal():
        free = min(free, int(limit[0]) - int(used[0]))
    return free


class Memory:
    """All memory of a backend, until `close`; what `buffer` returned keeps its piece alive beyond that."""

    def __init__(self) -> None:
        self._pieces: dict[int, mmap.mmap] = {}
        self._pages: int | None = None
        self._page_bytes = 0
        self._page_count = 0
        self._mapped: dict[int, int] = {}
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.mmap.restype = ctypes.c_void_p
        self._libc.mmap.argtypes = (
            ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long
        )  # fmt: skip

    def allocate(self, size: int, *, shared: bool = False) -> int:
        """Allocate zeroed memory; its address is a multiple of the machine's page.

        A limit on a process's data (RLIMIT_DATA) counts it unless it is shared.
        """
        require_memory(size)
        return self._piece(size, (mmap.MAP_SHARED if shared else mmap.MAP_PRIVATE) | mmap.MAP_ANONYMOUS)

    def allocate_pages(self, count: int, page_bytes: int) -> None:
        """Allocate pages without addresses, as a file in memory."""
        if self._pages is not None:
            raise PebblerError("pages have been allocated before; one pool of them is all there is")
        if not hasattr(os, "memfd_create") or page_bytes % mmap.PAGESIZE:
            raise DeviceError(f"pages of {page_bytes} bytes cannot be mapped here; use contiguous memory")
        require_memory(count * page_bytes)
        self._pages = os.memfd_create("pebbler")
        os.ftruncate(self._pages, count * page_bytes)
        self._page_bytes, self._page_count = page_bytes, count

    def reserve(self, size: int) -> int:
        """Reserve addresses at which no byte may be read or written."""
        private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        address = self._piece(size, private | _MAP_NO_RESERVE)
        self._mmap(address, size, _PROT_NONE, private | _MAP_FIXED, -1, 0)
        return address

    def buffer(self, address: int, size: int) -> ctypes.Array[ctypes.c_char]:
        """Return the bytes at an address, as a buffer that keeps their piece of memory alive."""
        begin = max(first for first in self._pieces if first <= address)
        return (ctypes.c_char * size).from_buffer(self._pieces[begin], address - begin)

    def map(self, address: int, pages: Sequence[int]) -> None:
        """Map pages in order, if others are there; neighbours in the file take one call."""
        assert self._pages is not None
        size = self._page_bytes
        wanted = [(address + k * size, page) for k, page in enumerate(pages)]
        if not (changed := [(at, page) for at, page in wanted if self._mapped.get(at) != page]):
            return
        steps = [(b - a, q - p) for (a, p), (b, q) in pairwise(changed)]
        breaks = [0, *(i for i, step in enumerate(steps, 1) if step != (size, 1)), len(changed)]
        for begin, end in pairwise(breaks):
            at, page = changed[begin]
            if page + end - begin > self._page_count:
                raise PebblerError(
                    f"page {changed[end - 1][1]} is not among the {self._page_count} of the pool"
                )
            flags = mmap.MAP_SHARED | _MAP_FIXED | _MAP_NOW
            self._mmap(at, (end - begin) * size, _PROT_READ_WRITE, flags, self._pages, page * size)
            self._mapped.update(changed[begin:end])

    def close(self) -> None:
        """Release all memory that no buffer uses."""
        self._pieces.clear()
        if self._pages is not None:
            os.close(self._pages)
            self._pages = None

    def _piece(self, size: int, flags: int) -> int:
        """Map zeroed memory anywhere."""
        try:
            piece = mmap.mmap(-1, max(size, 1), flags)
        except (OSError, OverflowError) as error:
            raise DeviceError(f"{size} bytes of memory cannot be had: {error}") from None
        address = ctypes.addressof(ctypes.c_char.from_buffer(piece))
        self._pieces[address] = piece
        return address

    def _mmap(self, address: int, size: int, protection: int, flags: int, file: int, offset: int) -> None:
        if self._libc.mmap(address, size, protection, flags, file, offset) == _FAILED:
            raise DeviceError(f"{size} bytes cannot be mapped: {os.strerror(ctypes.get_errno())}")


def require_memory(size: int) -> None:
    """Refuse to allocate more memory than there is; otherwise, the system would end the process."""
    free = available_bytes()
    if size > free:
        raise DeviceError(
            f"{size} bytes of memory are needed and {free} are available; take a smaller budget or sub-batch"
        )


def _lines(path: str) -> list[str]:
    file = Path(path)
    return file.read_text(encoding="ascii").splitlines() if file.exists() else []
