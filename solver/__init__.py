"""Schedules and bounds by proof.

Importing the package registers its methods, after those of the heuristics.
"""

from .. import heuristics
from .cp_sat import model as cp_sat
from .exhaustive import brute_force
from .flow import method as flow_method
from .flow import recompute_method as flow_recompute_method
from .recomputation import checkmate, poet
