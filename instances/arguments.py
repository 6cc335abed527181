"""Arguments that users give in Python: a wrong one is refused in one sentence that says what to give."""

from __future__ import annotations

import math
from collections.abc import Iterable
from os import PathLike

from .errors import PebblerError, printable
from .instance import Instance

_PLAIN = (str, bytes, int, float, bool, type(None), list, tuple, dict, set, frozenset)
_MOST_QUOTED = 60


def quoted(value: object) -> str:
    """Return a value as a sentence can hold it: plain ones as Python writes them, of others their type."""
    if type(value) in _PLAIN:
        return printable(repr(value), _MOST_QUOTED)
    article = "an" if type(value).__name__[:1] in "AEIOUaeio" else "a"
    return f"{article} {type(value).__name__}"


def require_kind(name: str, value: object, kind: type | tuple[type, ...], advice: str) -> None:
    """Refuse a value of another class; `advice` says what to give, as in ``give a number``."""
    if not isinstance(value, kind):
        raise PebblerError(f"{name} is {quoted(value)}; {advice}")


def require_instance(value: object) -> None:
    """Refuse what is no instance."""
    advice = "make an instance with Workload(...).instance(budget), or read one with read_instance(path)"
    require_kind("instance", value, Instance, advice)


def why_reads_vary(instance: Instance, what: str, tasks: Iterable[int] | None = None) -> str | None:
    """Return why something does not take an instance in which tasks read or make what their algorithms say.

    Parameters
    ----------
    instance
        Any instance.
    what
        What takes instances without such tasks only, as the sentence has it.
    tasks
        The tasks that matter to it; None: all.

    Returns
    -------
    str or None
        A sentence with the first such task; None if there is none.
    """
    for k in range(len(instance.tasks)) if tasks is None else tasks:
        if instance.tasks[k].reads_vary:
            return (
                f"{instance.name}: what task '{instance.tasks[k].name}' reads, makes or overwrites depends "
                f"on its algorithm, which is not modelled by {what}; leave out 'inputs', 'outputs' and "
                "'takes_over' there, or take flow-recompute"
            )
    return None


def require_fixed_reads(instance: Instance, what: str, tasks: Iterable[int] | None = None) -> None:
    """Refuse an instance in which what a task reads depends on its algorithm, as `why_reads_vary` says it.

    Raises
    ------
    PebblerError
        With the first such task, and what to do.
    """
    if (reason := why_reads_vary(instance, what, tasks)) is not None:
        raise PebblerError(reason)


def require_path(value: object) -> None:
    """Refuse what is no path of a file."""
    require_kind("path", value, (str, PathLike), "give the path of a file, such as 'a.json'")


def require_one_of(name: str, value: object, words: tuple[str, ...]) -> None:
    """Refuse what is none of some words."""
    if type(value) is not str or value not in words:
        *others, last = map(repr, words)
        raise PebblerError(f"{name} is {quoted(value)}; give {', '.join(others)} or {last}")


def require_whole(name: str, value: object, least: int, most: int | None = None) -> None:
    """Refuse what is no whole number of a range; a truth value is none, and neither is a number of NumPy."""
    if type(value) is not int or value < least or (most is not None and value > most):
        limits = f"from {least} on" if most is None else f"from {least} to {most}"
        raise PebblerError(f"{name} is {quoted(value)}; give a whole number {limits}")


def require_seconds(name: str, value: object) -> None:
    """Refuse what is neither None nor a number of seconds; infinity is none."""
    if value is None:
        return
    fine = isinstance(value, int | float) and type(value) is not bool
    if not fine or not 0 <= value < math.inf:  # type: ignore[operator]
        raise PebblerError(
            f"{name} is {quoted(value)}; give seconds as a number, such as 10, or None for no limit"
        )


def names_of(name: str, value: Iterable[str]) -> tuple[str, ...]:
    """Return a list of names as a tuple, each once; a text in the place of a list is refused."""
    if isinstance(value, str) or not isinstance(value, Iterable):
        example = [value] if isinstance(value, str) else ["flow"]
        raise PebblerError(f"{name} is {quoted(value)}; give a list of names, such as {quoted(example)}")
    names = list(value)
    for one in names:
        require_kind(f"a name in {name}", one, str, "give texts")
    return tuple(dict.fromkeys(names))
