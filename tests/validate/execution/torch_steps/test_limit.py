"""A step that the system's limit lets a plan take, and not eager torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ....extras import needs_torch

needs_torch()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems count other memory as data")
def test_a_step_that_eager_torch_has_no_memory_for_runs_with_a_plan() -> None:
    command = [sys.executable, "-m", f"{__package__}.limit", "--batch", "24", "--share", "0.8"]
    done = subprocess.run(
        command, cwd=Path(__file__).parents[4], capture_output=True, text=True, timeout=300, check=False
    )
    assert not done.returncode, done.stderr
    found = json.loads(done.stdout)
    assert found["limit_bytes"] < found["eager_peak_bytes"]
    assert not found["eager"]
    assert found["planned"], "with the bits of eager torch, which the script compares"
