"""Names of files with results."""

from __future__ import annotations

import re

from ...instances.instance import Instance


def file_name(instance: Instance) -> str:
    """Return the name of an instance, without characters that could lead out of the folder."""
    return re.sub(r"[^\w.-]+", "-", instance.name).lstrip(".") or "instance"


def method_file_name(method: str) -> str:
    """Return the name of a method, or of several with ``+`` between them, without such characters."""
    return re.sub(r"[^\w.+-]+", "-", method).lstrip(".") or "method"
