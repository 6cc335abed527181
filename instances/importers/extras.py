"""Packages that only some users need."""

from __future__ import annotations

from importlib.util import find_spec

from ..errors import PebblerError


def require_extra(package: str, extra: str | None = None) -> None:
    """Refuse to go on without a package that only some users need.

    Parameters
    ----------
    package
        Its name.
    extra
        The extra of pebbler that installs it, where that has another name.

    Raises
    ------
    PebblerError
        With the command that installs it.
    """
    if find_spec(package) is None:
        raise PebblerError(
            f"{package} is not installed; install it with pip install 'pebbler[{extra or package}]'"
        )
