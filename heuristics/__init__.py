"""Schedules by rule: the papers' policies, and the program builder that they share.

Importing the package registers its methods.
"""

from . import programs
from .papers import comparators, layrub, layrub_program, modnn, network_wide, vdnn, vdnn_dyn, vdnn_tpds
from .production import given, host_optimizer, two_level
from .production import rules as production
from .recomputation import rules as rematerialise
