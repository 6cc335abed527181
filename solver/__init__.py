"""Schedules and bounds by proof.

Importing the package registers its methods, after those of the heuristics.
"""

from .. import heuristics as _heuristics
from . import brute_force as _brute_force

__all__: list[str] = []
