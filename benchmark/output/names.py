"""Names of the files that results go to."""

from __future__ import annotations

import re

from ...instances.instance import Instance


def file_name(instance: Instance) -> str:
    """Name of an instance, without what might lead out of the folder."""
    return re.sub(r"[^\w.-]+", "-", instance.name).lstrip(".") or "instance"
