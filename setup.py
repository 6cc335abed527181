"""Compiles what Numba runs when the package is built, so that no command waits for it.

Numba keeps what it compiles in ``__pycache__`` beside the source, and a wheel carries that along. A command
compiles again where the processor, the version of Python or Numba, or the source is another. So what is
published has nothing compiled: with PEBBLER_KERNELS=none, the wheel is for every platform.
"""

import gzip
import os
import subprocess
import sys
import tarfile
import time
from importlib.util import find_spec
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

FLOORS = ("instances", "validate", "heuristics", "solver", "benchmark")
NEEDED = ("msgspec", "networkx", "numba", "numpy")
COMPILE = """
from pebbler.heuristics.loading import cluster_kernels, kernels, plan_kernels
from pebbler.heuristics.methods import Limits
from pebbler.solver.packing.search import load_search
from pebbler.validate.streams.concurrent import load_simulation

kernels(Limits())
plan_kernels(Limits())
cluster_kernels()
load_search()
load_simulation()
"""

if sys.platform == "win32":
    sys.exit("Pebbler runs on Linux and macOS, not on Windows; install it in the Windows Subsystem for Linux")
if os.environ.get("PEBBLER_KERNELS", "none") != "none":
    sys.exit("PEBBLER_KERNELS is 'none' (compile nothing when the package is built) or not set")
WITH_KERNELS = "PEBBLER_KERNELS" not in os.environ


class BuildWithKernels(build_py):
    """Builds the package, and what its kernels are compiled to."""

    def run(self) -> None:
        """Build the package, then import and compile it as it is built."""
        if self.editable_mode:
            links_or_exit()
        missing = [name for name in NEEDED if WITH_KERNELS and find_spec(name) is None]
        if missing:
            sys.exit(
                f"compiling what Numba runs needs {', '.join(missing)}: install what pyproject.toml lists "
                "under build-system, or set PEBBLER_KERNELS=none, and the first command compiles"
            )
        super().run()
        if not WITH_KERNELS:
            return
        built = Path("src" if self.editable_mode else self.build_lib).resolve()
        # pip gives what the build requires by PYTHONPATH.
        path = os.pathsep.join(filter(None, (str(built), os.environ.get("PYTHONPATH"))))
        environment = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
        environment.pop("NUMBA_CACHE_DIR", None)
        self.announce("compiling what Numba runs; this takes about a minute", level=2)
        subprocess.run([sys.executable, "-c", COMPILE], env=environment, check=True)


def links_or_exit() -> None:
    """End with a sentence where a link to a floor is missing: an editable installation follows them."""
    for floor in FLOORS:
        link = Path("src", "pebbler", floor)
        if not link.is_dir():
            sys.exit(
                f"{link} should be a symbolic link to ../../{floor}: install without -e, or restore the "
                "links (git config core.symlinks true; git checkout -- src)"
            )


class SameBytes(sdist):
    """Writes an archive that depends on the files and on SOURCE_DATE_EPOCH alone."""

    def make_archive(self, base_name, format, root_dir=None, base_dir=None, owner=None, group=None):  # noqa: A002
        """Write a tar of the files in order, all of one user and one time."""
        if format != "gztar":
            return super().make_archive(base_name, format, root_dir, base_dir, owner, group)
        moment = int(os.environ.get("SOURCE_DATE_EPOCH", time.time()))

        def plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
            member.mtime = moment
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            return member

        name = f"{base_name}.tar.gz"
        with (
            open(name, "wb") as file,  # noqa: PTH123
            gzip.GzipFile("", "wb", mtime=moment, fileobj=file) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
        ):
            tar.add(base_dir, filter=plain)  # in the order of names
        return name


class PlatformDistribution(Distribution):
    """Holds code for a processor, unless nothing is compiled: its wheel is for a platform."""

    def has_ext_modules(self) -> bool:
        """Whatever setuptools finds."""
        return WITH_KERNELS


setup(cmdclass={"build_py": BuildWithKernels, "sdist": SameBytes}, distclass=PlatformDistribution)
