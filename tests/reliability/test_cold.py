"""Loading is in no time that is reported: a small sample of the study in `cold`."""

from __future__ import annotations

import re
import sys

import pytest

from .cold import Times, main


@pytest.mark.parametrize(
    ("cold", "warm", "alike"),
    [
        ((1.0, 9.0, 1.1), (1.0, 1.0, 1.0), True),  # of several calls, the median counts
        ((1.3, 1.3, 1.3), (1.0, 1.0, 1.0), False),
        ((1.0, 1.0, 1.0), (1.3, 1.3, 1.3), False),
        ((0.003, 0.003, 0.003), (0.001, 0.001, 0.001), True),
    ],
)
def test_times_are_alike_within_a_share_or_some_milliseconds(
    cold: tuple[float, ...], warm: tuple[float, ...], alike: bool
) -> None:
    assert Times("a method", cold, warm, "done").alike is alike


def test_every_method_that_is_asked_for_is_called_twice(
    pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What it finds is for the study, on a machine with nothing else to do."""
    monkeypatch.syspath_prepend(pytestconfig.rootpath)  # for the processes of the methods
    monkeypatch.setattr(sys, "argv", ["cold", "--repeats", "1", "--methods", "modnn", "layrub-hybrid"])
    assert main() in (0, 1)
    assert re.findall(r"^\| (\S+) \| [\d.]+ s \| [\d.]+ s \|", capsys.readouterr().out, re.MULTILINE) == [
        "modnn",
        "layrub-hybrid",
    ]
