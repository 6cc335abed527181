"""A Dask cluster as an executor: workers on other machines, which may fail."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from typing import Any

from ...instances.errors import PebblerError
from ...instances.importers.extras import require_extra

PATIENCE_SECONDS = 10.0
"""Seconds to wait for the scheduler."""


@contextmanager
def cluster(address: str) -> Iterator[tuple[Executor, tuple[type[Exception], ...]]]:
    """Connect to a scheduler; yield an executor and its exception for a call that no worker survived.

    A call whose worker is lost is made again by another worker, as often as the scheduler allows.

    Parameters
    ----------
    address
        Address of the scheduler, such as ``tcp://127.0.0.1:8786``.

    Raises
    ------
    PebblerError
        When Dask is not installed, or the scheduler does not answer.
    """
    require_extra("distributed", "cluster")
    from distributed import Client, KilledWorker

    try:
        client: Any = Client(address, timeout=PATIENCE_SECONDS, set_as_default=False)  # type: ignore[no-untyped-call]
    except (OSError, ValueError) as error:
        raise PebblerError(f"there is no Dask scheduler at {address}: {error}") from None
    with client:
        yield client.get_executor(pure=False), (KilledWorker,)
