from __future__ import annotations

import pytest

from .extras import _require


def test_a_package_that_is_missing_skips_or_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PEBBLER_TORCH_TESTS", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no_such_package is not installed"):
        _require("no_such_package")
    monkeypatch.setenv("PEBBLER_TORCH_TESTS", "required")
    with pytest.raises(ModuleNotFoundError):
        _require("no_such_package")
