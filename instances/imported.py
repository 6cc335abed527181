"""What the workloads of users' models share: instances of any sub-batch, and packages that may be missing."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from importlib.util import find_spec

from .errors import PebblerError
from .instance import Instance
from .memory import parse_budget, require_budget, with_budget
from .workload import Workload


@dataclass(frozen=True, slots=True)
class ImportedWorkload(Workload):
    """One training iteration of a model that is not in the zoo; `network` is what it is called."""

    @abstractmethod
    def round(self, sub_batch: int, rounds: int) -> Instance:
        """Return the instance of one round at a valid sub-batch, under a budget of 0."""

    def instance(
        self,
        budget: int | str,
        sub_batch: int | None = None,
        *,
        rounds: int = 1,
        check_budget: bool = True,
    ) -> Instance:
        """Return the instance of one round; parameters and errors as for `Workload.instance`.

        Raises
        ------
        PebblerError
            Also when the model cannot be read or run.
        """
        sub_batch = self.batch if sub_batch is None else sub_batch
        self._require_sub_batch(sub_batch)
        instance = self.round(sub_batch, rounds)
        budget_bytes = parse_budget(budget, instance) if isinstance(budget, str) else budget
        instance = with_budget(instance, budget_bytes)
        if check_budget:
            require_budget(instance)
        return instance


def require_extra(package: str) -> None:
    """Refuse to go on without a package that only some users need.

    Raises
    ------
    PebblerError
        With the command that installs it.
    """
    if find_spec(package) is None:
        raise PebblerError(f"{package} is not installed; install it with pip install 'pebbler[{package}]'")
