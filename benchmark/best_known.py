"""The old name of ``pebbler best-known``, and of `sweeps.best_known`, for one version."""

import runpy
import sys
import warnings

from .sweeps.best_known import Record, Registry, admit, best_known

__all__ = ["Record", "Registry", "admit", "best_known"]
"""Names that this module passes on."""

if __name__ == "__main__":
    print("pebbler: this name goes with the next version; use pebbler best-known", file=sys.stderr)
    sys.argv[1:] = ["best-known", *(word.replace("--folder", "--output") for word in sys.argv[1:])]
    runpy.run_module("pebbler", run_name="__main__", alter_sys=True)
else:
    warnings.warn(f"{__name__} is now pebbler.benchmark.sweeps.best_known", DeprecationWarning, stacklevel=2)
