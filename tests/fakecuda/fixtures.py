"""The fake CUDA driver for tests: loaded into this process before PyCUDA looks for the real one."""

from __future__ import annotations

import ctypes
import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from pebbler.instances.instance import Instance
from pebbler.validate.execution.cuda.providers import Pass

from .build import MissingError, build

CAPACITY = 2 * 2**30


class FakeCuda:
    """The libraries, and what their driver can be told.

    Attributes
    ----------
    variables
        Of the environment, with which they are found instead of the real ones.
    driver
        ``libcuda.so.1``, for calls that nothing else makes.
    """

    def __init__(self, folder: Path, cache: Path) -> None:
        search = {"PATH": str(folder), "LD_LIBRARY_PATH": str(folder)}
        self.variables = {
            name: os.pathsep.join(filter(None, (place, os.environ.get(name))))
            for name, place in search.items()
        } | {"XDG_CACHE_HOME": str(cache)}
        # A library that is loaded already is found by its name, wherever it came from.
        self.driver = ctypes.CDLL(str(folder / "libcuda.so.1"), mode=ctypes.RTLD_GLOBAL)
        self.driver.fakecuda_configure.argtypes = [ctypes.c_size_t] * 3
        self.driver.fakecuda_fail.argtypes = [ctypes.c_longlong] * 2
        self.driver.fakecuda_refuse.argtypes = [ctypes.c_int] * 2
        counted = ("unpinned_copies", "bytes_in_use", "streams", "graphs", "retains", "releases", "contexts")
        for name in counted:
            getattr(self.driver, f"fakecuda_{name}").restype = ctypes.c_ulonglong

    def configure(self, *, capacity: int = CAPACITY, delay_us: int = 0, seed: int = 0) -> None:
        """Bound the memory, and let every job begin after a random delay."""
        self.driver.fakecuda_configure(capacity, delay_us, seed)

    def fail(self, *, launch: int = -1, copy: int = -1) -> None:
        """Let the n-th launch or copy from now on fail."""
        self.driver.fakecuda_fail(launch, copy)

    def refuse(self, which: Pass, number: int) -> None:
        """Let cuDNN refuse to launch an algorithm, by its pass and number, although it tells its workspace.

        Launches return ``CUDNN_STATUS_NOT_SUPPORTED``, in both interfaces, until `recover`. In another
        process, the environment does it: ``FAKECUDA_REFUSE=backward_data:3,forward:1``.
        """
        self.driver.fakecuda_refuse(("forward", "backward_data", "backward_filter").index(which), number)

    def recover(self) -> None:
        """Forget failures, those to come as well, as a new process would."""
        self.driver.fakecuda_recover()

    def unpinned_copies(self) -> int:
        """Asynchronous copies so far that were not, for their host memory was not pinned."""
        return int(self.driver.fakecuda_unpinned_copies())

    def bytes_in_use(self) -> int:
        """Device memory that is allocated."""
        return int(self.driver.fakecuda_bytes_in_use())

    def streams(self) -> int:
        """Streams that exist."""
        return int(self.driver.fakecuda_streams())

    def graphs(self) -> int:
        """Graphs that exist, and what was instantiated of graphs."""
        return int(self.driver.fakecuda_graphs())

    def retains(self) -> int:
        """How often the primary context has been retained so far."""
        return int(self.driver.fakecuda_retains())

    def releases(self) -> int:
        """How often the primary context has been released so far."""
        return int(self.driver.fakecuda_releases())

    def contexts(self) -> int:
        """Contexts on the stack of this thread."""
        return int(self.driver.fakecuda_contexts())


def repeatable(instance: Instance) -> Instance:
    """The instance with algorithms that always give the same bits in place of those that do not.

    Those are 0 of both backward passes and 3 of the filters'. Algorithm 1 takes their place; the fake cuDNN
    asks no workspace for it. Nothing else changes, so schedules stay valid.
    """
    tasks = []
    for task in instance.tasks:
        algorithms = tuple(
            msgspec.structs.replace(one, name="algo-1") if one.name in ("algo-0", "algo-3") else one
            for one in task.algorithms
        )
        tasks.append(msgspec.structs.replace(task, algorithms=algorithms))
    return msgspec.structs.replace(instance, tasks=tuple(tasks))


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
    # One folder, whichever module asks: two drivers in one process would not know of each other.
    folder = cache.mkdir("fakecuda") if cache else tmp_path_factory.getbasetemp() / "fakecuda"
    try:
        return load_fake_cuda(folder)
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
