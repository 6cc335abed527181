"""The one signature and the one registry of all methods, by rule or by proof.

A method maps an instance and limits to an answer. Command line, benchmark and study name methods, never
modules.
"""

from __future__ import annotations

import difflib
import logging
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from typing import Literal, get_args

from ..instances.arguments import quoted, require_kind, require_one_of, require_seconds, require_whole
from ..instances.errors import DefectError, PebblerError
from ..instances.figures import is_text
from ..instances.instance import Instance
from ..instances.units import LARGEST_SEED, MOST_THREADS
from ..instances.workload import Workload
from ..validate.bounds.certificate import Certificate
from ..validate.schedule import Schedule

OnBetter = Callable[[int | None, int | None], None]
"""A callback that is given a makespan and a lower bound in nanoseconds; either can be None."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits and options that a method is given.

    Attributes
    ----------
    time_limit
        Seconds that the method may take; None means until it is done.
    seed
        Seed of every random decision.
    workers
        Number of threads of a solver.
    memory
        Memory model of the schedule: ``contiguous`` or ``paged``.
    warm_start
        A schedule to start from.
    solver
        Name of the solver for linear models.
    log
        Whether solvers write their logs to standard error.
    without
        Names of the method's rules to leave out, which shows what each rule is worth.
    on_better
        Function to call whenever the makespan or the bound has improved. It is given both, in nanoseconds or
        None.

    Raises
    ------
    PebblerError
        For a value of another kind, such as a time limit that is a text.
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

    def __post_init__(self) -> None:
        require_seconds("time_limit", self.time_limit)
        require_whole("seed", self.seed, 0, LARGEST_SEED)
        require_whole("workers", self.workers, 1, MOST_THREADS)
        require_one_of("memory", self.memory, ("contiguous", "paged"))
        if self.warm_start is not None:
            require_kind("warm_start", self.warm_start, Schedule, "give a schedule, such as result.schedule")
        if self.on_better is not None and not callable(self.on_better):
            raise PebblerError(
                f"on_better is {quoted(self.on_better)}; give a function of a makespan and a bound"
            )

    @property
    def incumbent(self) -> Schedule | None:
        """The warm start if it has the requested memory model, so that it could be the answer; else None."""
        start = self.warm_start
        return start if start is not None and start.memory_model == self.memory else None


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a method.

    Attributes
    ----------
    schedule
        The schedule; None when there is none, and then `stopped_by` has the reason.
    stopped_by
        Why the method ended: ``done``, a limit, or the reason of a refusal.
    lower_bound_ns, bound_by
        A proven lower bound in nanoseconds, and the name of the argument or solver that gave it.
    certificate
        Proof of a bound in exact arithmetic. The bound that it proves can be less than `lower_bound_ns`.
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
"""A function from an instance and limits to an answer."""
Shown = Literal["always", "auto", "named"]
"""Comparisons that include a method which is not named: all, those that choose sub-batches, or none."""
Carries = Literal["settled", "read", "homing", "chosen"]
"""How a method takes blocks that rounds carry.

``settled``: such a block is an ordinary one, which lives on the host or never leaves the device. ``read``: it
lives on the host, or is read as `heuristics.carried` says; in contiguous memory it never leaves. ``homing``:
as ``read``, but in contiguous memory it may leave, and comes back to where it was. ``chosen``: the method
itself chooses where such blocks are at both ends.
"""
Sides = Literal["settled", "read", "chosen"]
"""How a method takes tasks that may run on the host.

``settled``: it plans the device's tasks alone, and the runs on the host are added to its program. ``read``:
it knows of both, and each task has its side. ``chosen``: the method itself chooses where tasks run.
"""
Reads = Literal["fixed", "chosen"]
"""How a method takes tasks that read or make different blocks with different algorithms.

``fixed``: it takes no such instance. ``chosen``: the method itself chooses what each run reads and makes.
"""
SubBatchRule = Callable[[Workload, int], int]
"""A function from a workload and a budget in bytes to the number of images of a round."""
Transform = Callable[[Instance], Instance]
"""A function from an instance to another instance of the same iteration under the same budget."""


class Refusal(Exception):  # noqa: N818 - a method's answer, not an error
    """A method's answer when its policy leads to no schedule; the message says at which task and why."""


class MethodError(DefectError):
    """A defect of a method, which broke its contract; the message names the method."""


@dataclass(frozen=True, slots=True)
class MethodInfo:
    """A registered method.

    Attributes
    ----------
    name, summary, source
        Its name, what it does in one line, and the paper or page that it comes from.
    call
        The function itself.
    shown
        Which comparisons include the method where no methods are named: all of them (``always``), only those
        in which methods choose their sub-batch (``auto``), or none (``named``).
    sub_batch
        The method's own rule for the sub-batch; None if it has no such rule.
    transform
        Makes the instance that the method schedules in a comparison; None if that is the instance itself.
    rules
        Names of the rules that can be left out of the method.
    guest
        Whether the method belongs to another package, which names it as an entry point.
    carries
        How the method takes blocks that rounds carry.
    sides
        How the method takes tasks that may run on the host.
    reads
        How the method takes tasks that read or make different blocks with different algorithms.
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
    carries: Carries = "settled"
    sides: Sides = "settled"
    reads: Reads = "fixed"

    def require_rules(self, names: Collection[str]) -> None:
        """Refuse names of rules that the method does not have.

        Raises
        ------
        PebblerError
            Names the unknown rule and lists the rules that the method has.
        """
        for name in sorted(set(names) - set(self.rules)):
            has = f"it has {', '.join(self.rules)}" if self.rules else "it has none that can be left out"
            raise PebblerError(f"method '{self.name}' has no rule '{name}'; {has}")


ENTRY_POINTS = "pebbler.methods"
"""Group of the entry points by which other packages add methods.

Each entry point names a module, or an object in a module, that registers methods when it is imported.
"""

_methods: dict[str, MethodInfo] = {}
"""The registered methods by name, in the order of their registration."""
_prefixes: dict[str, Callable[[str], MethodInfo]] = {}
"""Functions that make a method from its name, by what comes before the colon in the name."""
_loaded: set[EntryPoint] = set()
"""Entry points that have been loaded, or that could not be loaded."""
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
    carries: Carries = "settled",
    sides: Sides = "settled",
    reads: Reads = "fixed",
) -> Callable[[Method], Method]:
    """Register a method under a name (a decorator).

    A method with a rule for the sub-batch, or with a transform, is a planner: it chooses more than a
    schedule. What a module registers again replaces what it registered before, as when a cell of a notebook
    runs a second time.

    Parameters
    ----------
    name
        The name by which commands and `find_method` know the method.
    summary
        What the method does, in one line.
    source
        The paper or page that describes the method.
    shown, sub_batch, transform, rules, carries, sides, reads
        As in `MethodInfo`.

    Returns
    -------
    Callable
        The decorator. It returns the method unchanged.

    Raises
    ------
    PebblerError
        When another module has registered the name, or an argument is wrong.
    """
    for word, text in (("name", name), ("summary", summary), ("source", source)):
        if not is_text(text):
            raise PebblerError(f"the {word} of a method is {quoted(text)}; give one line of text")
    require_one_of("shown", shown, get_args(Shown))
    require_one_of("carries", carries, get_args(Carries))
    require_one_of("sides", sides, get_args(Sides))
    require_one_of("reads", reads, get_args(Reads))

    def enter(method: Method) -> Method:
        known = _methods.get(name)
        if known is not None and _module_of(known.call) != _module_of(method):
            raise PebblerError(f"method '{name}' is registered already; choose another name")
        guest = known is not None and known.guest
        _methods[name] = MethodInfo(
            name, summary, source, method, shown, sub_batch, transform, rules, guest, carries, sides, reads
        )
        return method

    return enter


def register_prefix(prefix: str, find: Callable[[str], MethodInfo]) -> None:
    """Let `find` make the methods whose names begin with a prefix and a colon; they are in no list."""
    _prefixes[prefix] = find


def _module_of(method: Method) -> str | None:
    """The module that defines a method; of a partial function, that of the function."""
    while isinstance(method, partial):
        method = method.func
    return getattr(method, "__module__", None)


def list_methods() -> tuple[MethodInfo, ...]:
    """Return all registered methods in the order of their registration; those of other packages come last.

    Returns
    -------
    tuple of MethodInfo
        The methods, with the function to call in `call`.
    """
    load_entry_points()
    return tuple(_methods.values())


def find_method(name: str) -> MethodInfo:
    """Return the method with a name.

    Parameters
    ----------
    name
        A registered name, such as ``flow``, ``exec:PROGRAM`` for a program, or ``policy:FILE`` for a policy.

    Returns
    -------
    MethodInfo
        The method, with the function to call in `call`.

    Raises
    ------
    PebblerError
        When no method has this name; the message lists similar names, or all names.
    """
    require_kind("a method", name, str, "give its name, such as 'flow'")
    if name not in _methods:
        load_entry_points()
    if name in _methods:
        return _methods[name]
    find = _prefixes.get(name.partition(":")[0]) if ":" in name else None
    if find is not None:
        if not is_text(name):
            raise PebblerError(f"the name of a method is {quoted(name)}; give one line of text")
        return find(name)
    close = difflib.get_close_matches(name, _methods, n=3)
    hint = f"did you mean {', '.join(close)}?" if close else f"there are {', '.join(_methods)}"
    raise PebblerError(f"there is no method '{name}'; {hint}")


@contextmanager
def temporary_methods(entries: Iterable[MethodInfo] | None = None) -> Iterator[None]:
    """Let what is registered until the end of a ``with`` block be forgotten then.

    Parameters
    ----------
    entries
        The methods that there are in its beginning; by default those that are registered now.
    """
    methods, loaded = dict(_methods), set(_loaded)
    if entries is not None:
        _methods.clear()
        _methods.update((info.name, info) for info in entries)
    try:
        yield
    finally:
        _methods.clear()
        _methods.update(methods)
        _loaded.clear()
        _loaded.update(loaded)


def load_entry_points() -> None:
    """Load the methods that installed packages add in the group ``pebbler.methods``, each package once.

    Methods that register here are guests. An entry point that cannot be imported, or that registers a name
    which is taken, is left out with a warning, so that a defect of another package does not stop this one.
    Whatever an entry point prints goes to standard error.
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
