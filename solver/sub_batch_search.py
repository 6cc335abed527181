"""The best sub-batch for a method, and a bound over all: a sub-batch that a bound excludes is not tried."""

from __future__ import annotations

import heapq
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from ..heuristics.loading import load_for
from ..heuristics.methods import Limits, Transform, find_method
from ..instances.errors import PebblerError
from ..instances.instance import Instance
from ..instances.memory import least_budget, require_budget
from ..instances.workload import Workload
from .answers import Answers, Ledger
from .bounds import Bound, best_bound, compute_bound
from .result import Result
from .solve import attempt

_PART, _LEAST = 3, 1 / 20
"""Divisor of the time left, and share of the whole time limit: a round may use the greater of the two times.

So a slow method can solve several rounds.
"""


@dataclass(slots=True)
class Iterations:
    """The iterations of a workload at every sub-batch that a budget allows, and their bounds.

    What is known of a round of some size counts for every sub-batch with such a round, as a full round or as
    the smaller last one. Instances are built anew when they are needed, and changed by `transform`. Bounds
    are kept, and answers of methods are added to the ledger.

    Raises
    ------
    BudgetError
        When no sub-batch fits the budget.
    """

    workload: Workload
    budget_bytes: int
    transform: Transform | None = None
    ledger: Ledger = field(default_factory=lambda: Ledger("contiguous"))
    _compute: dict[int, Bound] = field(default_factory=dict, init=False)
    _best: dict[int, Bound] = field(default_factory=dict, init=False)
    _answers: dict[int, Answers] = field(default_factory=dict, init=False)
    _largest: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        require_budget(self._build(1))
        low, high = 1, self.workload.batch
        while low < high:  # M_min rises with the sub-batch: blocks grow, and the least workspace is none
            middle = (low + high + 1) // 2
            fits = least_budget(self._build(middle)) <= self.budget_bytes
            low, high = (middle, high) if fits else (low, middle - 1)
        self._largest = low

    @property
    def sub_batches(self) -> range:
        """Return the sub-batches whose M_min is within the budget: all up to the largest."""
        return range(1, self._largest + 1)

    def fits(self, sub_batch: int) -> bool:
        """Return whether M_min at a sub-batch is within the budget."""
        self.workload.rounds(sub_batch)
        return sub_batch <= self._largest

    def instances(self, sub_batch: int) -> tuple[Instance, ...]:
        """Return the instances at a sub-batch: one, and a second one if the last round is smaller."""
        return tuple(self._build(size, rounds) for size, rounds in self.workload.rounds(sub_batch))

    def answers(self, size: int) -> Answers:
        """Return the answers of a round of some size."""
        if size not in self._answers:
            (instance, *_) = self.instances(size)
            self._answers[size] = self.ledger.of(instance)
            self._answers[size].claim(self._cheap(size))
        return self._answers[size]

    def compute_bound(self, sub_batch: int) -> Bound:
        """Return the compute bound on the iteration."""
        return self._add_up(sub_batch, self._compute_bound)

    def best_bound(self, sub_batch: int, author: str | None = None) -> Bound:
        """Return the best known bound on the iteration, which is the sum over its rounds."""
        return self._add_up(sub_batch, lambda size: self.round_bound(size, author))

    def round_bound(self, size: int, author: str | None = None) -> Bound:
        """Return the best known bound on a round: `best_bound`, or proven by methods.

        If an author is given, bounds that rest only on the word of other methods are left out.
        """
        return self._answers[size].bound(author) if size in self._answers else self._cheap(size)

    def least_bound(self) -> Bound:
        """Return the least of the bounds over all sub-batches: no choice of the sub-batch is below it."""
        least = _Queue(self, self.sub_batches).front()
        assert least is not None
        return self.of_all(least, self.sub_batches)

    def of_all(self, least: Bound, sub_batches: Iterable[int]) -> Bound:
        """Return the least bound over some sub-batches; it is certified as far as each of their bounds is."""

        def known(size: int) -> Bound:
            return self.round_bound(size) if size in self._best else self._compute_bound(size)

        certified = min(self._add_up(b, known).certified_ns for b in sub_batches)
        return replace(least, certified=certified >= least.lower_bound_ns, certified_sum_ns=certified)

    def _add_up(self, sub_batch: int, bound: Callable[[int], Bound]) -> Bound:
        sizes, counts = zip(*self.workload.rounds(sub_batch), strict=True)
        return iteration_bound(counts, [bound(size) for size in sizes])

    def _compute_bound(self, size: int) -> Bound:
        if size not in self._compute:
            self._compute[size] = compute_bound(self._build(size))
        return self._compute[size]

    def _cheap(self, size: int) -> Bound:
        """Return the best bound on a round that needs no solver."""
        if size not in self._best:
            self._best[size] = best_bound(self._build(size))
        return self._best[size]

    def _build(self, size: int, rounds: int = 1) -> Instance:
        instance = self.workload.instance(self.budget_bytes, size, rounds=rounds, check_budget=False)
        return instance if self.transform is None else self.transform(instance)


def iteration_bound(rounds: Sequence[int], bounds: Sequence[Bound]) -> Bound:
    """Return the sum of the bounds of an iteration's rounds, each as often as it is executed."""
    return Bound(
        sum(count * bound.lower_bound_ns for count, bound in zip(rounds, bounds, strict=True)),
        " and ".join(dict.fromkeys(bound.bound_by for bound in bounds)),
        all(bound.certified for bound in bounds),
        certified_sum_ns=sum(count * bound.certified_ns for count, bound in zip(rounds, bounds, strict=True)),
    )


@dataclass(frozen=True, slots=True)
class Choice:
    """The result of a search over sub-batches.

    Attributes
    ----------
    sub_batch, iteration_ns
        The best sub-batch, and the time of its iteration in nanoseconds; None if the method has no schedule
        at all.
    instances, results
        The instance and the result of each kind of round at the best sub-batch; a smaller last round is the
        second.
    bound
        A lower bound on the iteration over all candidates.
    evaluated
        Number of sub-batches at which the method was tried.
    pruned
        Numbers of the other sub-batches, by the reason that excludes them: ``budget`` (they do not fit), or
        the argument whose bound is no less than the best iteration. ``time limit`` and ``interrupted`` count
        sub-batches that nothing excludes.
    stopped_by
        ``done`` when all other sub-batches are excluded; else ``time limit`` or ``interrupted``.
    refusal
        Why the method had no schedule at the first sub-batch without one; None if it always had a schedule.
    seconds
        Wall time of the search in seconds.
    """

    sub_batch: int | None
    iteration_ns: int | None
    instances: tuple[Instance, ...]
    results: tuple[Result, ...]
    bound: Bound
    evaluated: int
    pruned: dict[str, int]
    stopped_by: str
    refusal: str | None
    seconds: float


def search_sub_batch(
    iterations: Iterations,
    method: str,
    *,
    candidates: Iterable[int] | None = None,
    time_limit: float | None = None,
    seed: int = 0,
    workers: int = 1,
) -> Choice:
    """Find the sub-batch at which a method has the shortest iteration.

    Sub-batches are tried in the order of their bounds. Cheap bounds come first: the compute bound of all
    sub-batches, then the single-peak bound of those that come to the front. What the method itself proves of
    a round counts for other sub-batches with such a round. Bounds that rest only on the word of other methods
    exclude nothing.

    The search ends when no remaining bound is below the best iteration. Of equal iterations, the first one
    found counts. Of equal bounds, the sub-batch with larger rounds comes first. Ctrl-C ends the search with
    the best so far.

    Parameters
    ----------
    iterations
        Workload, budget and memory model, with the bounds known so far; the search adds what it finds.
    method
        Name of a registered method; its own rule for the sub-batch is not used.
    candidates
        Sub-batches to choose from; by default, all from 1 to the batch.
    time_limit
        Time limit in seconds of the whole search. A round may use a third of the time left, or a twentieth of
        the whole limit if that is more. None means until done, however long the method takes at each
        sub-batch.
    seed, workers
        Seed of random decisions, and number of a solver's threads.

    Raises
    ------
    PebblerError
        For an unknown method, a candidate that is not within 1 and the batch, or none that fits the budget.
    MethodError
        As `solve` raises it, and exceptions of the method itself.
    """
    load_for(find_method(method).call, Limits(time_limit, seed, workers))
    workload = iterations.workload
    wanted = dict.fromkeys(range(1, workload.batch + 1) if candidates is None else candidates)
    possible = [b for b in wanted if iterations.fits(b)]
    if not possible:
        raise PebblerError(
            f"{workload.name}: there is no candidate within the largest sub-batch that fits the budget, "
            f"{iterations.sub_batches[-1]}; give a smaller one"
        )
    search = _Search(iterations, method, time_limit, seed, workers, time.monotonic())
    queue = _Queue(iterations, possible, method)
    stopped_by = search.run(queue)
    pruned = Counter({"budget": len(wanted) - len(possible)}) + queue.excluded(search.iteration_ns)
    pruned[stopped_by] += len(queue) - sum(queue.excluded(search.iteration_ns).values())
    bounds = [iterations.best_bound(b, method) for b in search.tried]
    if front := queue.front():
        bounds.append(front)
    best = search.sub_batch
    rounds = [] if best is None else workload.rounds(best)
    return Choice(
        sub_batch=best,
        iteration_ns=None if best is None else int(search.iteration_ns),
        instances=() if best is None else iterations.instances(best),
        results=tuple(search.solved[size] for size, _ in rounds),
        bound=iterations.of_all(min(bounds, key=lambda bound: bound.lower_bound_ns), possible),
        evaluated=len(search.tried),
        pruned=dict(+pruned),
        stopped_by=stopped_by,
        refusal=search.refusal,
        seconds=time.monotonic() - search.began,
    )


class _Queue:
    """Sub-batches in the order of their bounds; better bounds are computed only at the front.

    If an author is given, bounds that rest only on the word of other methods do not count.
    """

    def __init__(self, iterations: Iterations, candidates: Iterable[int], author: str | None = None) -> None:
        self._iterations = iterations
        self._author = author
        self._heap: list[tuple[int, int, str]] = []
        for b in candidates:
            self._push(b, iterations.compute_bound(b))

    def _push(self, b: int, bound: Bound) -> None:
        heapq.heappush(self._heap, (bound.lower_bound_ns, -b, bound.bound_by))

    def front(self, limit: float = math.inf) -> Bound | None:
        """Return the least of all bounds; None if it is not below the limit."""
        while self._heap and self._heap[0][0] < limit:
            known, negative, _ = self._heap[0]
            bound = self._iterations.best_bound(-negative, self._author)
            if bound.lower_bound_ns == known:
                return bound
            heapq.heappop(self._heap)
            self._push(-negative, bound)
        return None

    def take(self) -> int:
        """Remove the sub-batch at the front."""
        return -heapq.heappop(self._heap)[1]

    def excluded(self, limit: float) -> Counter[str]:
        """Return how many remaining bounds are no less than the limit, by their argument."""
        return Counter(name for known, _, name in self._heap if known >= limit)

    def __len__(self) -> int:
        return len(self._heap)


@dataclass(slots=True)
class _Search:
    """A search in progress: the solved rounds, and the best sub-batch so far."""

    iterations: Iterations
    method: str
    time_limit: float | None
    seed: int
    workers: int
    began: float
    solved: dict[int, Result] = field(default_factory=dict)
    tried: list[int] = field(default_factory=list)
    sub_batch: int | None = None
    iteration_ns: float = math.inf
    refusal: str | None = None

    def run(self, queue: _Queue) -> str:
        """Try sub-batches until no bound is under the best; return why it ended."""
        try:
            while queue.front(self.iteration_ns) is not None:
                if self.tried and self.seconds_left() <= 0:
                    return "time limit"
                self.tried.append(queue.take())
                self.try_out(self.tried[-1])
                if any(result.stopped_by == "interrupted" for result in self.solved.values()):
                    return "interrupted"
        except KeyboardInterrupt:
            return "interrupted"
        return "done"

    def try_out(self, sub_batch: int) -> None:
        """Solve the rounds of a sub-batch as long as it may be the best."""
        rounds = self.iterations.workload.rounds(sub_batch)
        solved = 0
        for i, (size, count) in enumerate(rounds):
            result = self.solve(size)
            if result.makespan_ns is None:
                self.refusal = self.refusal or f"sub-batch {sub_batch}: {result.stopped_by}"
                return
            solved += count * result.makespan_ns
            to_come = sum(
                n * self.iterations.round_bound(s, self.method).lower_bound_ns for s, n in rounds[i + 1 :]
            )
            if solved + to_come >= self.iteration_ns:
                return
        self.sub_batch, self.iteration_ns = sub_batch, solved

    def solve(self, size: int) -> Result:
        """Solve a round of some size once, and keep the bounds that it proves."""
        if size not in self.solved:
            limit = None
            if self.time_limit is not None:
                limit = max(self.seconds_left() / _PART, self.time_limit * _LEAST)
            result = attempt(
                self.iterations.answers(size),
                self.method,
                time_limit=limit,
                seed=self.seed,
                workers=self.workers,
            )
            if result.failure is not None:
                raise result.failure
            self.solved[size] = result
        return self.solved[size]

    def seconds_left(self) -> float:
        """Return the seconds left; infinity without a time limit."""
        spent = time.monotonic() - self.began
        return math.inf if self.time_limit is None else self.time_limit - spent
