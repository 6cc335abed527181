"""Schedules by rule: the papers' policies, and the program builder that they share.

Importing the package registers its methods.
"""

from . import network_wide as _network_wide
from . import vdnn as _vdnn

__all__: list[str] = []
