"""The face for training steps of torch, where torch is missing."""

from __future__ import annotations

import subprocess
import sys

import pytest

import pebbler.torch
from pebbler.instances.importers import extras


def test_without_torch_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda _: None)
    with pytest.raises(pebbler.PebblerError) as caught:
        pebbler.torch.plan(lambda _: (), batch=4, budget="1GiB")
    assert str(caught.value) == "torch is not installed; install it with pip install 'pebbler[torch]'"


def test_pebbler_and_its_face_for_torch_are_imported_without_torch() -> None:
    code = (
        "import sys, pebbler; assert 'pebbler.torch' not in sys.modules; "
        "import pebbler.torch; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
