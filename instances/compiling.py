"""Saying that Numba compiles: with nothing in its cache for this processor, that takes up to a minute."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

_log = logging.getLogger(__name__)


@contextmanager
def telling_of_compiling() -> Iterator[None]:
    """Log the first time that Numba compiles in this block: nothing in its cache is for this processor."""
    from numba.core import event

    class Teller(event.Listener):
        told = False

        def on_start(self, _: object) -> None:
            if not self.told:
                _log.info("compiling, once: that takes up to a minute")
            self.told = True

        def on_end(self, _: object) -> None:
            pass

    with event.install_listener("numba:compile", Teller()):
        yield
