"""Calls of methods, isolated so that a defect of one method costs only its own answer.

A method gets copies of its arguments, and its answer passes the reader of files. A method of another package
is a guest. It is called in a process of its own, whose prints go to standard error, and which is killed if it
does not keep its time limit. A method that is registered in the user's own program is called in that program,
because it may depend on the program's memory.
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import nullcontext, redirect_stdout
from dataclasses import fields, replace
from typing import Any, TypeVar

import msgspec

from ..heuristics.methods import Answer, Limits, MethodError, MethodInfo, Refusal, find_method
from ..instances.errors import BudgetError, FormatError, PebblerError
from ..instances.files import decode, encode, reread
from ..instances.instance import Instance, Natural
from ..instances.processes.child import Child, ChildEnded
from ..instances.workload import Workload
from ..validate.bounds.certificate import Certificate
from ..validate.schedule import Schedule

GRACE = 30.0
"""Seconds after its time limit at which a guest is killed; loading and compiling are not limited."""

_Document = TypeVar("_Document", bound=msgspec.Struct)
"""Type of a document that a file can hold."""

_EXPECTED: dict[str, type[Exception]] = {
    "refusal": Refusal,
    "budget": BudgetError,
    "wrong": PebblerError,
    "defect": MethodError,
}
"""Exceptions that a guest may raise in its process, by the word that is sent for each."""


class Host:
    """A caller of one method; the method's process, if it has one, ends with the ``with`` block.

    Attributes
    ----------
    waited
        Seconds of `solve` that are not the method's own: for copies, the start of its process, or loading its
        code.
    """

    def __init__(self, info: MethodInfo) -> None:
        self.info = info
        self.waited = 0.0
        self._child: Child | None = None

    def __enter__(self) -> Host:
        return self

    def __exit__(self, *_: object) -> None:
        if self._child is not None:
            self._child.stop()

    def solve(self, instance: Instance, limits: Limits) -> Answer:
        """Call the method.

        Raises
        ------
        Refusal
            As the method raises it.
        MethodError
            When the method breaks its contract. Other exceptions of a method in the user's program are not
            caught.
        """
        began, own = time.perf_counter(), 0.0
        try:
            if limits.warm_start is not None:
                limits = replace(limits, warm_start=reread(limits.warm_start))
            if self.info.guest:
                limit = None if limits.time_limit is None else limits.time_limit + GRACE
                # `on_better` is not called, because better schedules are in the other process.
                limits = replace(limits, on_better=None)
                own, packed = self._ask("call", encode(instance), limits, wall_limit=limit)
                return _unpacked(self.info.name, packed)
            copied = reread(instance)
            called = time.perf_counter()
            try:
                found = self._here(self.info.call, copied, limits)
            finally:
                own = time.perf_counter() - called
            return _read(self.info.name, found)
        finally:
            self.waited += time.perf_counter() - began - own

    def transform(self, instance: Instance) -> Instance:
        """Return the instance that the method schedules: the instance itself if the method has no transform.

        Raises
        ------
        MethodError
            When the result is not of the same iteration, or has another budget.
        """
        if self.info.transform is None:
            return instance
        if self.info.guest:
            data = self._ask("transform", encode(instance))
            changed = decode(data, Instance, "an instance", f"what method {self.info.name} plans on")
        else:
            changed = _document(
                self.info.name, Instance, self._here(self.info.transform, reread(instance)), "instance"
            )
        require_kept(self.info.name, instance, changed)
        return changed

    def sub_batch(self, workload: Workload, budget_bytes: int) -> int:
        """Return the number of images of a round by the method's own rule.

        Raises
        ------
        MethodError
            When this is not a number from 1 to the batch.
        """
        assert self.info.sub_batch is not None
        if self.info.guest:
            size = self._ask("sub_batch", workload, budget_bytes)
        else:
            size = self._here(self.info.sub_batch, workload, budget_bytes)
        if type(size) is not int or not 1 <= size <= workload.batch:
            raise MethodError(
                f"method {self.info.name} chose a sub-batch of {size!r:.50}, which is not within 1 and the "
                f"batch of {workload.batch}"
            )
        return size

    def _here(self, function: Callable[..., object], *arguments: object) -> object:
        """Call a function in this process."""
        # Streams are of all threads; another thread's prints are left alone.
        main = threading.current_thread() is threading.main_thread()
        try:
            with redirect_stdout(sys.stderr) if main else nullcontext():
                return function(*arguments)
        except FormatError as error:
            raise MethodError(_broken(self.info.name, error)) from None
        except SystemExit as error:
            raise MethodError(_left(self.info.name, error)) from None

    def _ask(self, what: str, *arguments: object, wall_limit: float | None = None) -> Any:
        """Call a function of the method in its process."""
        if self._child is None:
            self._child = Child()
        self._child.start(perform, self.info.name, what, arguments, wall_limit=wall_limit)
        try:
            answer = self._child.result()
        except ChildEnded as error:
            why = f"{error}, {GRACE:.0f} s over its time limit" if error.wanted else str(error)
            raise MethodError(f"method {self.info.name} ended its process: {why}") from None
        assert isinstance(answer, tuple)
        word, value = answer
        if word in _EXPECTED:
            raise _EXPECTED[word](value)
        return value


def require_kept(method: str, instance: Instance, changed: Instance) -> None:
    """Refuse an instance that is not of the same iteration, under the same budget, as another instance.

    Engines, budgets, resident bytes, rounds and GPUs must be the same. So must the tasks with their
    algorithms, which are the work. The blocks that tasks touch may differ, and so may the tasks that may run
    again.

    Raises
    ------
    MethodError
        Names the difference.
    """
    for name in (
        "engines",
        "budget_bytes",
        "resident_bytes",
        "alignment_bytes",
        "rounds",
        "cluster",
        "host_budget_bytes",
    ):
        before, after = getattr(instance, name), getattr(changed, name)
        if before != after:
            told = "" if name in ("cluster", "host_budget_bytes") else f" from {before} to {after}"
            raise MethodError(f"method {method} plans on an instance that changes {name}{told}")
    works = [[(task.name, task.algorithms) for task in one.tasks] for one in (instance, changed)]
    if works[0] != works[1]:
        raise MethodError(
            f"method {method} plans on an instance that changes its work: tasks, their order or algorithms"
        )
    if changed.name == instance.name and encode(changed) != encode(instance):
        raise MethodError(
            f"method {method} plans on another instance that has the same name, {instance.name}; "
            "a transform gives it another"
        )


def described(error: BaseException) -> str:
    """Return an exception's kind and text in one line."""
    try:
        return " ".join(f"{type(error).__name__}: {error}".split())
    except Exception:
        return type(error).__name__


def _read(method: str, answer: object) -> Answer:
    """Return a method's answer as it is when it is read from files."""
    if not isinstance(answer, Answer):
        raise MethodError(f"method {method} returned {_kind(answer)}, not an Answer")
    schedule, certificate = answer.schedule, answer.certificate
    if schedule is not None:
        schedule = _document(method, Schedule, schedule, "schedule")
    if certificate is not None:
        certificate = _document(method, Certificate, certificate, "certificate")
    kinds = {"stopped_by": str, "lower_bound_ns": Natural | None, "bound_by": str | None, "infeasible": bool}
    for name, kind in kinds.items():
        try:
            msgspec.convert(getattr(answer, name), kind)
        except msgspec.ValidationError as error:
            told = str(error)
            raise MethodError(f"method {method}: its answer's {name}: {told[:1].lower()}{told[1:]}") from None
    if schedule is not None and answer.infeasible:
        raise MethodError(f"method {method} says that there is no schedule, and has one")
    return replace(answer, schedule=schedule, certificate=certificate)


def _document(method: str, kind: type[_Document], value: object, what: str) -> _Document:
    if not isinstance(value, kind):
        raise MethodError(f"method {method}: its {what} is {_kind(value)}")
    try:
        return reread(value)
    except FormatError as error:
        raise MethodError(f"method {method}: its {what} is none that a file may hold: {error}") from None


def _kind(value: object) -> str:
    return f"an object of type {type(value).__name__}"


def _broken(method: str, error: FormatError) -> str:
    return f"method {method} made a document that breaks a rule of its format: {error}"


def _left(method: str, error: SystemExit) -> str:
    return f"method {method} called sys.exit({error.code!r:.50})"


# --- in the guest's process -----------------------------------------------------------------------------


def perform(name: str, what: str, arguments: tuple[Any, ...]) -> tuple[str, object]:
    """Call a function of a method; return its answer, or its exception, as data that any process can read."""
    info = find_method(name)
    try:
        if what == "call":
            data, limits = arguments
            instance = decode(data, Instance, "an instance", "the instance")
            began = time.perf_counter()
            answer = info.call(instance, limits)
            return what, (time.perf_counter() - began, _packed(_read(name, answer)))
        if what == "transform":
            assert info.transform is not None
            changed = info.transform(decode(arguments[0], Instance, "an instance", "the instance"))
            return what, encode(_document(name, Instance, changed, "instance"))
        assert info.sub_batch is not None
        return what, msgspec.to_builtins(info.sub_batch(*arguments))
    except FormatError as error:
        return "defect", _broken(name, error)
    except tuple(_EXPECTED.values()) as error:
        return next(word for word, kind in _EXPECTED.items() if isinstance(error, kind)), str(error)
    except BaseException as error:
        if isinstance(error, SystemExit):
            return "defect", _left(name, error)
        traceback.print_exc()
        return "defect", described(error)


def _packed(answer: Answer) -> dict[str, object]:
    """Return an answer's fields, with its documents as the bytes of their files."""
    found = {field.name: getattr(answer, field.name) for field in fields(answer)}
    for name in ("schedule", "certificate"):
        found[name] = None if found[name] is None else encode(found[name])
    return found


def _unpacked(method: str, found: dict[str, Any]) -> Answer:
    kinds: dict[str, type[msgspec.Struct]] = {"schedule": Schedule, "certificate": Certificate}
    for name, kind in kinds.items():
        if found[name] is not None:
            found[name] = decode(found[name], kind, f"a {name}", f"the {name} of method {method}")
    return Answer(**found)
