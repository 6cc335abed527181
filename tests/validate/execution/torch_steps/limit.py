"""The least memory with which a training step runs: under a limit on the process's data (RLIMIT_DATA), Linux.

``python -m tests.validate.execution.torch_steps.limit`` prints the table; with ``--write`` that goes to
docs/torch.md, and what it is made of to docs/data. Steps run in forks of a process that has imported all and
taken steps of both kinds, each with a limit of so many bytes more than the process has then. The limit counts
what torch's allocator and Python get, and the plan's pool; it leaves out shared mappings, which are what the
plan keeps on the host.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import resource
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

import pebbler.torch
from pebbler.benchmark.output.machine import origin
from pebbler.benchmark.output.markdown import markdown, publish
from pebbler.instances.units import format_size
from pebbler.validate.execution.device import DeviceError

from .models import wide
from .training import CLIP, eager_step, state_of

DOCS = Path(__file__).parents[4] / "docs"
STEP = 1 << 20
"""Bytes to which limits are found."""

_MMAP_THRESHOLD, _LEAST_MAPPED = -3, 1 << 16
"""Option of glibc's mallopt, and from which size on memory is mapped, and so given back, one by one."""


def data_bytes() -> int:
    """Return the bytes that RLIMIT_DATA counts of this process."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmData:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/self/status has no VmData")


def runs_within(extra: int, take: Callable[[], bool]) -> bool:
    """Whether a fork of this process does something with so many bytes of data more than it has now.

    Raises
    ------
    ChildProcessError
        When it fails for something else than memory, or does it wrongly.
    """
    sys.stdout.flush()
    child = os.fork()
    if not child:
        code = 3
        try:
            resource.setrlimit(resource.RLIMIT_DATA, (data_bytes() + extra, resource.RLIM_INFINITY))
            code = 0 if take() else 2
        except (MemoryError, DeviceError, RuntimeError) as error:
            words = ("allocate memory", "cannot be had", "start new thread")
            code = 1 if isinstance(error, MemoryError) or any(word in str(error) for word in words) else 3
            if code == 3:
                print(error, file=sys.stderr)
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code not in (0, 1):
        raise ChildProcessError(f"with {extra} bytes more, the step ended with status {code}")
    return code == 0


def least(take: Callable[[], bool], most: int) -> int:
    """Return the least bytes of data with which a step runs, to a multiple of `STEP`; it does with `most`."""
    low, high = 0, most // STEP
    while low + 1 < high:
        middle = (low + high) // 2
        low, high = (low, middle) if runs_within(middle * STEP, take) else (middle, high)
    return high * STEP


class Steps:
    """A step of a network with large feature maps, in eager torch and by a plan within half of its peak."""

    def __init__(self, batch: int) -> None:
        libc = ctypes.CDLL(None)
        libc.mallopt(_MMAP_THRESHOLD, _LEAST_MAPPED)
        torch.set_num_threads(1)
        torch.manual_seed(3)
        self._made = wide(batch)
        roomy = pebbler.torch.plan(
            lambda _: self._made, batch=batch, budget="1TiB", clip=CLIP, method="network-wide"
        )
        self.eager_bytes = roomy.record.eager_peak_bytes
        self.plan = pebbler.torch.plan(
            lambda _: self._made, batch=batch, budget=self.eager_bytes // 2, clip=CLIP, method="modnn"
        )
        del roomy
        self._before = state_of(self._made)
        self._wanted = [eager_step(self._made)(*self._made[2]), *state_of(self._made)]
        self._set_back()
        assert self.planned()
        self._set_back()
        gc.collect()
        libc.malloc_trim(0)

    def eager(self) -> bool:
        """Take a step in eager torch."""
        return self._is_wanted(eager_step(self._made)(*self._made[2]))

    def planned(self) -> bool:
        """Take a step by the plan."""
        with self.plan.bind(self._made[0], self._made[3]) as step:
            loss = step(*self._made[2])
        return self._is_wanted(loss)

    def _is_wanted(self, loss: Any) -> bool:
        return all(map(torch.equal, [loss, *state_of(self._made)], self._wanted))

    def _set_back(self) -> None:
        with torch.no_grad():
            for tensor, before in zip(self._made[0].state_dict().values(), self._before, strict=False):
                tensor.copy_(before)


def main() -> int:
    """Find the least limits."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--share", type=float, help="try this share of eager torch's peak, and print JSON")
    parser.add_argument("--write", action="store_true", help="write docs/data and docs/torch.md")
    arguments = parser.parse_args()
    steps = Steps(arguments.batch)
    found: dict[str, Any] = {
        "eager_peak_bytes": steps.eager_bytes,
        "budget_bytes": steps.plan.instance.budget_bytes,
        "peak_bytes": steps.plan.schedule.peak_bytes,
        "scratch_bytes": max(
            algorithm.workspace_bytes for task in steps.plan.instance.tasks for algorithm in task.algorithms
        ),
    }
    if arguments.share is not None:
        extra = int(arguments.share * steps.eager_bytes)
        found |= {"limit_bytes": extra}
        found |= {word: runs_within(extra, getattr(steps, word)) for word in ("eager", "planned")}
        print(json.dumps(found))
        return 0
    for word in ("eager", "planned"):
        found[f"{word}_limit_bytes"] = least(getattr(steps, word), 2 * steps.eager_bytes)
    found |= {"date": datetime.now(UTC).date().isoformat(), "torch": torch.__version__}
    found |= {"made_with": f"{origin()}"}
    if arguments.write:
        path = DOCS / "data" / "torch-limit.json"
        path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    header = ("", "least limit", "peak or budget", "greatest scratch")
    figures = [
        ("eager torch", "eager_limit_bytes", "eager_peak_bytes"),
        ("plan", "planned_limit_bytes", "budget_bytes", "scratch_bytes"),
    ]
    rows = [(word, *(format_size(found[figure]) for figure in some)) for word, *some in figures]
    rows[0] = *rows[0], ""
    text = f"{markdown(header, rows)}\n{found['date']}; {found['made_with']}.\n"
    page = DOCS / "torch.md" if arguments.write else None
    publish(text, page, "<!-- begin limit -->\n", "<!-- end limit -->\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
