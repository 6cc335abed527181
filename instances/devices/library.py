"""Versions of cuDNN: which a device has, and what differs between them in the cost model.

The versions that the papers and the published timings name are told apart where algorithms or their speed
differ: cuDNN Release Notes and Developer Guide; what a product does is cuBLAS's, which is of the same time.
"""

from __future__ import annotations

from typing import Literal, get_args

from ..errors import PebblerError

Library = Literal["4", "5.0", "5.1", "6", "7", "8", "9"]
"""A version of cuDNN, and the cuBLAS of its time."""
Architecture = Literal[
    "kepler", "maxwell", "pascal", "volta", "turing", "ampere", "ada", "hopper", "blackwell", "cdna3"
]

LIBRARIES: tuple[Library, ...] = get_args(Library)

_NEWEST_OF_THE_YEAR: dict[int, Library] = {2016: "5.1", 2017: "7", 2020: "8", 2024: "9"}
"""From when on a version is the newest; of versions before 4 there are no timings."""
_FIRST: dict[Architecture, Library] = {
    "pascal": "5.0",
    "volta": "7",
    "turing": "7",
    "ampere": "8",
    "ada": "8",
    "hopper": "8",
    "blackwell": "9",
}
"""The first version that knows an architecture."""


def library_of_year(year: int) -> Library:
    """Return the version that a device has unless another is asked for: the newest of its first year."""
    found: Library = LIBRARIES[0]
    for since, library in _NEWEST_OF_THE_YEAR.items():
        if since <= year:
            found = library
    return found


def read_library(text: str, architecture: Architecture | None = None) -> Library:
    """Return the version of cuDNN that a text names, for an architecture.

    Raises
    ------
    PebblerError
        When there is none of this name, or it is older than the architecture.
    """
    known = {str(library): library for library in LIBRARIES}
    if text not in known:
        raise PebblerError(f"there is no cuDNN '{text}'; there are {', '.join(LIBRARIES)}")
    first = LIBRARIES[0] if architecture is None else _FIRST.get(architecture, LIBRARIES[0])
    if not is_since(known[text], first):
        able = LIBRARIES[LIBRARIES.index(first) :]
        raise PebblerError(f"cuDNN {text} is older than {architecture}; there are {', '.join(able)}")
    return known[text]


def is_since(library: Library, first: Library) -> bool:
    """Whether a version is that one or a later one."""
    return LIBRARIES.index(library) >= LIBRARIES.index(first)


def has_winograd(library: Library, architecture: Architecture | None) -> bool:
    """Whether there is Winograd in one kernel: from cuDNN 5 on, and not from Hopper on."""
    return is_since(library, "5.0") and architecture not in ("hopper", "blackwell")


def has_winograd_nonfused(library: Library) -> bool:
    """Whether there is Winograd in kernels of its own for the transforms: from cuDNN 5.1 on."""
    return is_since(library, "5.1")


def joins_groups(library: Library) -> bool:
    """Whether all groups of a convolution are one launch: from cuDNN 7 on; before, each was one."""
    return is_since(library, "7")


def product_edge(library: Library) -> int:
    """Least rows and columns that a matrix product computes; half a tile where cuBLAS has narrower ones."""
    return 32 if is_since(library, "7") else 64


def product_slice(library: Library) -> int:
    """Depth from which on a matrix product is split among thread blocks along its inner dimension.

    This and `product_edge` are chosen on DeepBench's products with few columns: cuBLAS 7.5 and 8 RC split the
    deepest only, cuBLAS 8 splits sometimes, and cuBLAS 10 nearly always.
    """
    return 128 if is_since(library, "7") else 512 if is_since(library, "6") else 4096
