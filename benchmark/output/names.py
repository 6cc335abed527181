"""Names of files with results."""

from __future__ import annotations

import re

from ...instances.instance import Instance


def file_name(instance: Instance) -> str:
    """Return the name of an instance, without characters that could lead out of the folder."""
    return re.sub(r"[^\w.-]+", "-", instance.name).lstrip(".") or "instance"
