"""Whether the runs of a results file are what its protocol asks for: its rules, instances and settings."""

from __future__ import annotations

from msgspec import UNSET
from msgspec.structs import replace

from ...instances.errors import PebblerError
from ..sweeps.config import Sweep, protocol_problems, settings, shipped_protocol
from ..sweeps.jobs import Setting
from ..sweeps.results import Results, Run

_LIMITS = ("memory_model", "time_limit", "wall_limit", "memory_limit_bytes", "workers", "without")
"""What a protocol says of a setting, beside its method and solver."""


class Ruling:
    """The shipped protocol by whose title a results file goes; it allows all where there is none.

    Parameters
    ----------
    results
        The results file.

    Raises
    ------
    PebblerError
        When the file has a shipped protocol's title and other rules.
    """

    def __init__(self, results: Results) -> None:
        self._ruled = results.protocol()
        self._config = None if self._ruled is None else shipped_protocol(self._ruled[0])
        self._problems = frozenset[str]()
        if self._ruled is None or self._config is None:
            return
        title, rules = self._ruled
        if rules != self._config.protocol:
            raise PebblerError(
                f"{results.path} has other rules than {title}, by which it says its runs are made; "
                "the file was changed"
            )
        self._problems = protocol_problems(title)

    @property
    def is_there(self) -> bool:
        """Whether the runs were made by a protocol, shipped or not."""
        return self._ruled is not None

    def why_not(self, run: Run) -> str | None:
        """Return in what a run differs from what its protocol asks for; None if it does not."""
        if self._ruled is None or self._config is None:
            return None
        title = self._ruled[0]
        if run.about.problem not in self._problems:
            return f"{title} has no such problem"
        method, first = run.setting.method, self._config.sweep[0]
        sweeps = [sweep for sweep in self._config.sweep if method in sweep.methods or sweep is first]
        reasons = [_difference(sweep, run.setting, run.seed) for sweep in sweeps]
        if None in reasons:
            return None
        name, value = next(reason for reason in reasons if reason is not None)
        return f"its {name} is {value}, and {title} does not say so"


def _difference(sweep: Sweep, setting: Setting, seed: int) -> tuple[str, object] | None:
    """Return name and value of what a sweep does not ask for; None if it asks for all."""
    (asked,) = settings(replace(sweep, methods=sweep.methods[:1], solvers=()))
    for name in _LIMITS:
        if getattr(setting, name) != getattr(asked, name):
            return name, getattr(setting, name)
    if seed not in sweep.seeds:
        return "seed", seed
    if setting.solver not in (sweep.solvers or (UNSET,)):
        return "solver", setting.solver
    return None
