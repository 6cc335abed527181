"""The fake CUDA driver for tests: loaded into this process before PyCUDA looks for the real one."""

from __future__ import annotations

import ctypes
import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from .build import MissingError, build

CAPACITY = 2 * 2**30


class FakeCuda:
    """The libraries, and what their driver can be told.

    Attributes
    ----------
    variables
        Of the environment, with which they are found instead of the real ones.
    """

    def __init__(self, folder: Path, cache: Path) -> None:
        search = {"PATH": str(folder), "LD_LIBRARY_PATH": str(folder)}
        self.variables = {
            name: os.pathsep.join(filter(None, (place, os.environ.get(name))))
            for name, place in search.items()
        } | {"XDG_CACHE_HOME": str(cache)}
        # A library that is loaded already is found by its name, wherever it came from.
        self._driver = ctypes.CDLL(str(folder / "libcuda.so.1"), mode=ctypes.RTLD_GLOBAL)
        self._driver.fakecuda_configure.argtypes = [ctypes.c_size_t] * 3
        self._driver.fakecuda_fail.argtypes = [ctypes.c_longlong] * 2
        for name in ("unpinned_copies", "bytes_in_use", "streams", "graphs"):
            getattr(self._driver, f"fakecuda_{name}").restype = ctypes.c_ulonglong

    def configure(self, *, capacity: int = CAPACITY, delay_us: int = 0, seed: int = 0) -> None:
        """Bound the memory, and let every job begin after a random delay."""
        self._driver.fakecuda_configure(capacity, delay_us, seed)

    def fail(self, *, launch: int = -1, copy: int = -1) -> None:
        """Let the n-th launch or copy from now on fail."""
        self._driver.fakecuda_fail(launch, copy)

    def recover(self) -> None:
        """Forget a failure, as a new process would."""
        self._driver.fakecuda_recover()

    def unpinned_copies(self) -> int:
        """Asynchronous copies so far that were not, for their host memory was not pinned."""
        return int(self._driver.fakecuda_unpinned_copies())

    def bytes_in_use(self) -> int:
        """Device memory that is allocated."""
        return int(self._driver.fakecuda_bytes_in_use())

    def streams(self) -> int:
        """Streams that exist."""
        return int(self._driver.fakecuda_streams())

    def graphs(self) -> int:
        """Graphs that exist, and what was instantiated of graphs."""
        return int(self._driver.fakecuda_graphs())


def load_fake_cuda(cache: Path) -> FakeCuda:
    """Build the libraries, or take them from the cache, and load them.

    Raises
    ------
    MissingError
        When PyCUDA, a compiler or CUDA's headers are not there.
    """
    if importlib.util.find_spec("pycuda") is None:
        raise MissingError("no PyCUDA; run .ci/install_pycuda")
    return FakeCuda(build(cache / "libraries"), cache / "kernels")


@pytest.fixture(scope="session")
def _loaded_fake_cuda(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> FakeCuda:
    cache = getattr(pytestconfig, "cache", None)  # None with -p no:cacheprovider
    try:
        return load_fake_cuda(cache.mkdir("fakecuda") if cache else tmp_path_factory.mktemp("fakecuda"))
    except MissingError as error:
        if os.environ.get("PEBBLER_CUDA_TESTS") == "required":
            raise
        pytest.skip(f"the CUDA path needs the fake driver: {error}")


@pytest.fixture
def fake_cuda(_loaded_fake_cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCuda]:
    """The fake driver, without limits that matter, delays or failures; other processes find it, too."""
    for name, value in _loaded_fake_cuda.variables.items():
        monkeypatch.setenv(name, value)
    _loaded_fake_cuda.recover()
    _loaded_fake_cuda.configure()
    yield _loaded_fake_cuda
    _loaded_fake_cuda.recover()
    _loaded_fake_cuda.configure()
