"""Schedules by rule: the papers' policies, and the program builder that they share.

Importing the package registers its methods.
"""

from . import comparators, layrub, modnn, network_wide, rematerialise, vdnn, vdnn_dyn
