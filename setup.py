"""Compiles what Numba runs when the package is built, so that no command waits for it.

Numba keeps what it compiles in ``__pycache__`` beside the source, and a wheel carries that along. A command
compiles again where the processor, the version of Python or Numba, or the source is another.
"""

import os
import subprocess
import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py

COMPILE = """
from pebbler.heuristics.loading import kernels
from pebbler.heuristics.methods import Limits
from pebbler.solver.packing.search import load_search
from pebbler.validate.streams.concurrent import load_simulation

kernels(Limits())
load_search()
load_simulation()
"""


class BuildWithKernels(build_py):
    """Builds the package, and what its kernels are compiled to."""

    def run(self) -> None:
        """Build the package, then import and compile it as it is built."""
        super().run()
        built = Path("src" if self.editable_mode else self.build_lib).resolve()
        # pip gives what the build requires by PYTHONPATH.
        path = os.pathsep.join(filter(None, (str(built), os.environ.get("PYTHONPATH"))))
        environment = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
        environment.pop("NUMBA_CACHE_DIR", None)
        self.announce("compiling what Numba runs; this takes about a minute", level=2)
        subprocess.run([sys.executable, "-c", COMPILE], env=environment, check=True)


class PlatformDistribution(Distribution):
    """Holds code for a processor: its wheel is for a platform."""

    def has_ext_modules(self) -> bool:
        """Whatever setuptools finds."""
        return True


setup(cmdclass={"build_py": BuildWithKernels}, distclass=PlatformDistribution)
