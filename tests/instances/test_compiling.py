from __future__ import annotations

import logging

import pytest

from pebbler.instances.compiling import telling_of_compiling


def test_compiling_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    from numba import njit

    first, second = njit(lambda x: x + 1), njit(lambda x: x + 2)
    with caplog.at_level(logging.INFO, logger="pebbler"):
        with telling_of_compiling():
            first(1)
            second(1)
        with telling_of_compiling():
            first(1)
    (record,) = caplog.records
    assert record.getMessage().startswith("compiling, once")
