"""What only some tests need: torch and onnx, skipped without, or a failure where they must be there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest


def needs_torch() -> Any:
    """Return torch; without it, skip the test or the module that asks.

    With ``PEBBLER_TORCH_TESTS=required``, as in CI, the import fails instead.
    """
    return _require("torch")


def needs_onnx() -> Any:
    """Return onnx, as `needs_torch` returns torch; CI has both in one environment."""
    return _require("onnx")


@contextmanager
def single_precision() -> Iterator[tuple[Any, Any]]:
    """Torch's settings of single precision in products and convolutions, which are as before in the end."""
    torch = needs_torch()
    both = torch.backends.cuda.matmul, torch.backends.cudnn.conv
    before = [setting.fp32_precision for setting in both]
    try:
        yield both
    finally:
        for setting, value in zip(both, before, strict=True):
            setting.fp32_precision = value


def _require(package: str) -> Any:
    if find_spec(package) is None and os.environ.get("PEBBLER_TORCH_TESTS") != "required":
        pytest.skip(f"{package} is not installed", allow_module_level=True)
    return import_module(package)
