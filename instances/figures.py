"""Types of figures in files: whole numbers that every language reads exactly."""

from __future__ import annotations

from typing import Annotated

import msgspec

from .units import LARGEST

Positive = Annotated[int, msgspec.Meta(ge=1, le=LARGEST)]
Natural = Annotated[int, msgspec.Meta(ge=0, le=LARGEST)]
