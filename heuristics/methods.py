"""The one signature and the one registry of all methods, by rule or by proof.

A method maps an instance and limits to an answer. Command line, benchmark and study name methods, never
modules.
"""

from __future__ import annotations

import difflib
import logging
import sys
from collections.abc import Callable, Collection
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint, entry_points
from typing import Literal

from ..instances.errors import DefectError, PebblerError
from ..instances.instance import Instance
from ..instances.workload import Workload
from ..validate.bounds.certificate import Certificate
from ..validate.schedule import Schedule

OnBetter = Callable[[int | None, int | None], None]
"""Takes a makespan and a lower bound."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a method may use.

    Attributes
    ----------
    time_limit
        Seconds; None: until the method is done.
    seed
        Of every random decision.
    workers
        Threads of a solver.
    memory
        Memory model of the schedule.
    warm_start
        A schedule to start from.
    solver
        What solves linear models.
    log
        Whether solvers write their logs to standard error.
    without
        Rules that the method leaves out, by name, to see what each buys.
    on_better
        Called with the makespan and the bound, in nanoseconds or None, whenever one is better than before.
    """

    time_limit: float | None = None
    seed: int = 0
    workers: int = 1
    memory: Literal["contiguous", "paged"] = "contiguous"
    warm_start: Schedule | None = None
    solver: str = "highs"
    log: bool = False
    without: frozenset[str] = frozenset()
    on_better: OnBetter | None = None

    @property
    def incumbent(self) -> Schedule | None:
        """The warm start where it could be the answer: if it is in the memory model that is asked for."""
        start = self.warm_start
        return start if start is not None and start.memory_model == self.memory else None


@dataclass(frozen=True, slots=True)
class Answer:
    """What a method has found.

    Attributes
    ----------
    schedule
        None when there is none, with the reason in `stopped_by`.
    stopped_by
        Why the method ended: ``done``, a limit, or the reason of a refusal.
    lower_bound_ns, bound_by
        A proven bound, and which argument or solver gave it.
    certificate
        What proves a bound in exact arithmetic, which may be less than the one above.
    infeasible
        Whether the method proved that no schedule exists.
    """

    schedule: Schedule | None
    stopped_by: str = "done"
    lower_bound_ns: int | None = None
    bound_by: str | None = None
    certificate: Certificate | None = None
    infeasible: bool = False


Method = Callable[[Instance, Limits], Answer]
Shown = Literal["always", "auto", "named"]
SubBatchRule = Callable[[Workload, int], int]
"""From a workload and a budget in bytes to the images of a round."""
Transform = Callable[[Instance], Instance]
"""To another instance of the same iteration, under the same budget."""


class Refusal(Exception):  # noqa: N818 - a method's answer, not an error
    """A method's policy leads to no schedule; the message says at which task and why."""


class MethodError(DefectError):
    """A method broke its contract: a defect of the method, which the message names."""


@dataclass(frozen=True, slots=True)
class MethodInfo:
    """A registered method: its name, what it does in one line, and its source.

    `shown` says which comparisons include it where no methods are named: ``always``, only where methods
    choose their sub-batch (``auto``), or none (``named``). `sub_batch` is the method's own rule for the
    sub-batch, where it has one; `transform` makes the instance that a comparison lets it schedule; `rules`
    are those that can be left out of it. A `guest` is of another package, which names it as an entry point.
    """

    name: str
    summary: str
    source: str
    call: Method
    shown: Shown = "always"
    sub_batch: SubBatchRule | None = None
    transform: Transform | None = None
    rules: tuple[str, ...] = ()
    guest: bool = False

    def require_rules(self, names: Collection[str]) -> None:
        """Refuse names of rules that the method does not have.

        Raises
        ------
        PebblerError
            With the rules that it has.
        """
        for name in sorted(set(names) - set(self.rules)):
            has = f"it has {', '.join(self.rules)}" if self.rules else "it has none that can be left out"
            raise PebblerError(f"method '{self.name}' has no rule '{name}'; {has}")


ENTRY_POINTS = "pebbler.methods"
"""Group of entry points of other packages, each a module, or something in it, that registers methods."""

_methods: dict[str, MethodInfo] = {}
_loaded: set[EntryPoint] = set()
_log = logging.getLogger(__name__)


def register(
    name: str,
    summary: str,
    source: str,
    *,
    shown: Shown = "always",
    sub_batch: SubBatchRule | None = None,
    transform: Transform | None = None,
    rules: tuple[str, ...] = (),
) -> Callable[[Method], Method]:
    """Enter a method into the registry under a name (a decorator).

    `shown`, `sub_batch`, `transform` and `rules` are as `MethodInfo` has them; a rule for the sub-batch, or a
    transform, makes a planner.

    Raises
    ------
    PebblerError
        When the name is taken.
    """

    def enter(method: Method) -> Method:
        if name in _methods:
            raise PebblerError(f"method '{name}' is registered already; choose another name")
        _methods[name] = MethodInfo(name, summary, source, method, shown, sub_batch, transform, rules)
        return method

    return enter


def list_methods() -> tuple[MethodInfo, ...]:
    """All registered methods, in the order of their registration; those of other packages come last."""
    load_entry_points()
    return tuple(_methods.values())


def find_method(name: str) -> MethodInfo:
    """Return the method of a name.

    Raises
    ------
    PebblerError
        When there is none; close names are listed.
    """
    if name not in _methods:
        load_entry_points()
    if name in _methods:
        return _methods[name]
    close = difflib.get_close_matches(name, _methods, n=3)
    hint = f"did you mean {', '.join(close)}?" if close else f"there are {', '.join(_methods)}"
    raise PebblerError(f"there is no method '{name}'; {hint}")


def load_entry_points() -> None:
    """Import what installed packages name in the group ``pebbler.methods``, once.

    What they register are guests. What cannot be imported, or registers a name that is taken, is left out
    with a warning: another package's defect must not stop ours. What it prints goes to standard error.
    """
    for point in entry_points(group=ENTRY_POINTS):
        if point in _loaded:
            continue
        _loaded.add(point)
        known = set(_methods)
        try:
            with redirect_stdout(sys.stderr):
                point.load()
        except (Exception, SystemExit) as error:
            where = "a package" if point.dist is None else point.dist.name
            _log.warning(
                "the methods '%s' of %s cannot be loaded: %s: %s",
                point.name,
                where,
                type(error).__name__,
                error,
            )
        for name in _methods.keys() - known:
            _methods[name] = replace(_methods[name], guest=True)
