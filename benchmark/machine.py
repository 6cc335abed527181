"""Where a measurement was made: machine, versions, revision, and the memory that a process took."""

from __future__ import annotations

import os
import platform
import resource
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path

PACKAGES = ("pebbler", "msgspec", "numba", "numpy", "ortools")
"""What answers depend on; OR-Tools carries the solvers."""


@dataclass(frozen=True, slots=True)
class Origin:
    """What a measurement was made with.

    Attributes
    ----------
    machine
        Processor, cores and memory.
    python, packages
        Versions.
    revision
        Of the working folder in version control, ``-dirty`` where files differ from it; None without.
    """

    machine: str
    python: str
    packages: dict[str, str]
    revision: str | None


@cache
def origin() -> Origin:
    """Return the origin of what this process measures."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    return Origin(
        machine=f"{_processor()}, {os.cpu_count()} cores, {memory:.0f} GiB",
        python=platform.python_version(),
        packages=package_versions(),
        revision=_revision(),
    )


@cache
def package_versions() -> dict[str, str]:
    """Return the versions of the packages that answers depend on."""
    return {name: version(name) for name in PACKAGES}


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def peak_rss_bytes() -> int:
    """Upper bound on the resident memory so far: this process's peak, plus that of its largest child."""
    peaks = [resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(peaks) * (1 if sys.platform == "darwin" else 1024)


def limit_memory(size: int) -> None:
    """Refuse this process, and those that it will start, more than so many bytes of address space each."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    allowed = size if hard == resource.RLIM_INFINITY else min(size, hard)
    resource.setrlimit(resource.RLIMIT_AS, (allowed, hard))


def _processor() -> str:
    """Model of the processor, where the system tells it."""
    file = Path("/proc/cpuinfo")
    if file.exists():
        for line in file.read_text("utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _revision() -> str | None:
    try:
        command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
