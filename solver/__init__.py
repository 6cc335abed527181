"""Schedules and bounds by proof.

Importing the package registers its methods, after those of the heuristics.
"""

from .. import heuristics
from . import brute_force, checkmate, cp_sat, flow_method, flow_recompute_method, poet
