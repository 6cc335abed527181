"""Lower bounds on the makespan of a round, in integers and fractions only: the basis of certificates.

Every argument here holds in every memory model, for schedules with or without moves inside the device. The
argument of a single peak does not hold for recomputable tasks. This module imports only the instance, and
nothing that solves. It computes for itself which data is in memory at what time: if solvers shared a helper
with it, an error in the helper would confirm itself.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise

import msgspec

from ...instances.figures import MILLION
from ...instances.instance import Algorithm, Block, Instance
from .carried import NEVER, cheapest_round
from .host_work import alone_with_host, least_on_host
from .machine import CopyCosts, LinkTimes, Slowed, copy_costs, fair_shares, slowed_intervals, touched_on_host
from .reads import Choice, choices_of, readings_of, with_least_reads
from .reruns import RerunKey, cheapest, cheapest_again, cheapest_optional, course_of, rerun_intervals
from .survival import Reads, SurvivalKey, last_needs, needs, require_survival, rewards, wages


def compute_ns(instance: Instance) -> int:
    """Return the sum of the tasks' least times, over algorithms that fit beside the task's blocks.

    Tasks that may run on the host do not count: runs of the device follow each other without them. Nor is a
    round shorter than the runs of the tasks that can run on the host alone.
    """
    on_host = sum(
        min(algorithm.duration_ns for algorithm in task.algorithms)
        for task in instance.tasks
        if not task.device_algorithms
    )
    return max(sum(least_times(instance)), on_host)


def least_times(instance: Instance) -> list[int]:
    """Return, per task, the least time of the algorithms that fit, or of all algorithms if none fits.

    It is 0 for tasks that may run on the host.
    """
    return [
        0 if task.may_run_on_host else min(a.duration_ns for a in fitting(instance, k))
        for k, task in enumerate(instance.tasks)
    ]


def fitting(instance: Instance, k: int) -> tuple[Algorithm, ...]:
    """Return the algorithms of task k whose workspace fits beside its blocks, or all if none does.

    They are those of the device; a task that can run on the host alone has none.
    """
    algorithms = instance.tasks[k].device_algorithms
    if len(algorithms) < 2:
        return algorithms
    if instance.tasks[k].reads_vary:
        return tuple([one.algorithm for one in choices_of(instance, k)])
    room = instance.pool_bytes - touched_bytes(instance, k)
    return tuple(a for a in algorithms if a.workspace_bytes <= room) or algorithms


def touched_bytes(instance: Instance, k: int) -> int:
    """Return the bytes of the blocks that task k touches, all of which are in memory while it runs."""
    blocks = instance.blocks
    return sum([blocks[d].bytes for d in instance.tasks[k].blocks])


def needed(instance: Instance, d: int) -> list[int]:
    """Return the points where a block must be on the device: its uses, and the end if it must end there.

    The number of tasks stands for the end.
    """
    at_the_end = instance.blocks[d].finally_ == "device"
    return [*instance.uses[d], *([len(instance.tasks)] if at_the_end else [])]


def in_whole_pages(instance: Instance, page_bytes: int) -> Instance:
    """Return an instance with sizes in whole pages, which paged schedules satisfy except for addresses.

    Sizes of blocks and of workspaces on the device are rounded up to whole pages, and the pool is rounded
    down. Parts of a tensor become blocks of their own, because places do not matter here. Workspaces and
    copies in host memory keep their exact bytes: where it has a budget, that grows by as many bytes as all
    blocks do. So do copies on a link that both directions share.
    """

    def pages(size: int) -> int:
        return -(-size // page_bytes) * page_bytes

    blocks = tuple(
        msgspec.structs.replace(
            block,
            bytes=pages(block.bytes),
            tensor=None,
            begin=None,
            load_bytes=None if instance.link is msgspec.UNSET else block.loaded_bytes,
        )
        for block in instance.blocks
    )
    tasks = []
    for task in instance.tasks:
        algorithms = tuple(
            a if a.on == "host" else msgspec.structs.replace(a, workspace_bytes=pages(a.workspace_bytes))
            for a in task.algorithms
        )
        tasks.append(msgspec.structs.replace(task, algorithms=algorithms))
    pool = max(instance.pool_bytes, 0) // page_bytes * page_bytes
    host = instance.host_budget_bytes
    if host is not msgspec.UNSET:
        host += sum(pages(block.bytes) - block.bytes for block in instance.blocks)
    return msgspec.structs.replace(
        instance,
        blocks=blocks,
        tasks=tuple(tasks),
        budget_bytes=instance.resident_bytes + pool,
        host_budget_bytes=host,
    )


# --- prices of memory and of the engines' time ----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices at the instants and intervals of some checkpoints, as whole numbers over one denominator.

    The i-th checkpoint has the instants 2i (its start) and 2i + 1 (its end); interval j ends at instant j,
    and a last one lies after the last instant.

    Attributes
    ----------
    denominator
        Number by which all prices are divided.
    memory
        Per instant, the price of a byte in memory, in nanoseconds per byte.
    engines
        Per copy engine (offload, prefetch; or the only one) and interval, the price of the engine's time, in
        nanoseconds per nanosecond. The prices of all engines in an interval add up to at most one.
    reruns
        Per task, interval in which it may run again, and block, a price in nanoseconds per byte. For a block
        that the run writes, the version that is made pays the price. For a block that it reads, the run pays
        it. With a checkpoint and one of its instants, the price is of a block that the task reads with some
        of its algorithms only, which that run pays, or makes with some only, which is paid to the run.
        Missing prices are zero.
    host
        Per instant, the price of a byte of a copy in host memory, where that has a budget, in nanoseconds per
        byte; none: all are zero.
    ends
        Where blocks are carried, the price of a byte that is on the device at both ends, and, where host
        memory has a budget, that of a byte that is there at both ends; none: they are zero.
    link
        Where both directions share a link, prices of its time by interval, in nanoseconds per nanosecond: for
        each of `LinkTimes`, or for the first alone; none: all are zero. In an interval, they and those of the
        engines add up to at most one.
    stream
        Per interval, where tasks may run on the host, the price of the host's time; as those of the link.
    survival
        Where tasks may run again, prices of a byte of what does not survive an instant (`survival`), in
        nanoseconds per byte. Missing prices are zero.
    """

    denominator: int
    memory: Sequence[int]
    engines: Sequence[Sequence[int]]
    reruns: Mapping[RerunKey, int] = field(default_factory=dict)
    host: Sequence[int] = ()
    ends: Sequence[int] = ()
    link: Sequence[Sequence[int]] = ()
    stream: Sequence[int] = ()
    survival: Mapping[SurvivalKey, int] = field(default_factory=dict)

    def times(self, factor: int) -> Prices:
        """Return the same prices as whole numbers over a larger denominator."""

        def more(prices: Sequence[int]) -> list[int]:
            return [factor * price for price in prices]

        return Prices(
            factor * self.denominator,
            more(self.memory),
            [more(paid) for paid in self.engines],
            {key: factor * price for key, price in self.reruns.items()},
            more(self.host),
            more(self.ends),
            [more(paid) for paid in self.link],
            more(self.stream),
            {key: factor * price for key, price in self.survival.items()},
        )


def priced_ns(instance: Instance, checkpoints: Sequence[int], prices: Prices) -> int:
    """Bound the makespan by prices of memory and of the engines' time: the Lagrangian bound of FLOW.

    Take any schedule. In no interval is an engine busy for longer than the interval, and at no instant is the
    data in memory larger than the pool. So the makespan is at least this sum: the makespan, plus the
    price of the engines' busy time, less the price of the intervals' lengths, plus the price of the data in
    memory, less the price of the pool. Versions of blocks pay the second runs that make them, and second runs
    pay the versions that they read. Tasks, checkpoints, second runs and versions are independent in that sum:
    each is bounded by its cheapest choice, and the sum of the cheapest choices is the bound.

    - Time between checkpoints is at least the least times of the tasks there.
    - A checkpoint runs an algorithm that fits, and pays for its blocks and its workspace.
    - Where what a checkpoint reads depends on its algorithm, it pays at both of its instants for the blocks
      that this one alone reads, and these are paid if they are on the device then (`reads`). A version that
      some algorithms of a checkpoint leave out is made by a second run, or pays the checkpoint for making it.
    - A second run takes its least time, pays for the blocks that it reads, and is paid for those that it
      writes; or it does not happen.
    - A version of a block pays for its bytes between uses. Or it pays for one whole offload after it is
      written, and for a prefetch after each stay that it spends on the host, or for being made again. Copying
      it in pieces is a mix of such choices, and no cheaper than the cheapest of them.
    - A version that does not survive an instant, and is needed later, pays for that, and so may the inputs of
      what is made again; second runs after the instant are paid what is left over (`survival`).
    - Where host memory has a budget, its price is paid in the same way: what is wanted later and absent, and
      no second run makes again, has a copy there. So an absent byte saves the price of memory less that of
      host memory, if this is more than nothing, and all of host memory is paid back.
    - A carried block is one choice: its places at both ends, which are the same, and all that it does in
      between. It pays for these places, and memory is paid back, but for what must be there at the end.
    - Where both directions share a link, no interval has more load than the link can pass, and none has more
      of the times that copies of one direction take from those of the other (`FairShares`). So the prices of
      the link's time are paid for these times as the engines' prices are for the copies' own.
    - Where copies slow tasks down, the share of an interval that other prices leave is paid for its tasks and
      for what they lose by the copies in it: an interval is at least as long as both (`slowed_intervals`).
    - A task that may run on the host, and the blocks that no other such task touches, are one choice: it runs
      on the device between checkpoints, or on the host in some interval, where it pays for the host's time.
      Blocks that several such tasks touch pay nothing.

    The prices that a linear program finds give its bound. Any other prices give a bound as well, which is
    weaker.

    Parameters
    ----------
    instance
        The instance to bound.
    checkpoints
        Tasks, in increasing order.
    prices
        One price for each instant and interval of the checkpoints.

    Raises
    ------
    ValueError
        When the prices are not valid; the message has the reason.
    """
    given, instance = instance, with_least_reads(instance)
    readings, others = readings_of(given, checkpoints, prices.reruns)
    prices = replace(prices, reruns=others)
    again = rerun_intervals(instance, checkpoints)
    shared = touched_on_host(instance)
    always = [task.must_read for task in given.tasks]
    _require_prices(given, always, instance, checkpoints, prices, again)
    slowed = slowed_intervals(instance, checkpoints, again) if instance.is_slowed else []
    prices = prices.times(MILLION) if slowed else prices
    one = prices.denominator
    left = [one - sum(paid) for paid in zip(*_paid_for_time(prices), strict=True)]
    engines = _with_losses(prices, left, slowed) if slowed else prices.engines
    upto = [0, *accumulate(prices.memory)]  # price of a byte that stays from the start until before instant i
    saved = [0, *accumulate(_saved_by_absence(prices))]  # what the same byte saves by its absence
    least = [0, *accumulate(least_times(instance))]
    total: int = 0
    following = 0
    for i, k in enumerate(checkpoints):
        instants = prices.memory[2 * i] + prices.memory[2 * i + 1]
        total += left[2 * i] * (least[k] - least[following])
        total += instants * (touched_bytes(instance, k) - instance.pool_bytes)
        total += min(
            left[2 * i + 1] * a.duration_ns
            + instants * (a.workspace_bytes + sum([instance.blocks[d].bytes for d in made]))
            + sum([readings.paid.get((k, d), 0) for d in alone])
            - sum([readings.made.get(d, 0) for d in made])
            for a, alone, made in _choices(given, instance, k)
        )
        following = k + 1
    total += left[-1] * (least[-1] - least[following])
    paid_runs = _paid_runs(always, instance, checkpoints, prices, again)
    total += _run_price(always, instance, prices, left, paid_runs)
    total += needs(instance, prices.survival)
    spared = rewards(instance, prices.survival)
    makes, reads = _dealings(always, instance, prices, again)
    read_again = {d for d, _ in (*reads, *readings.held)}
    away = [here - spared for here, spared in zip(prices.memory, _saved_by_absence(prices), strict=True)]
    ends = (*prices.ends, 0, 0)[:2]
    shares = fair_shares(instance) if prices.link else None

    def on_device(d: int, costs: CopyCosts) -> int:
        """The least that a block pays whose uses are all on the device, and that no second run touches."""
        if instance.blocks[d].initially == "carried":
            return cheapest_round(instance, d, checkpoints, prices.memory, away, costs, ends)
        versions = _versions(instance, d, checkpoints)
        return sum(_version_price(one, upto, saved, len(prices.memory), costs) for one in versions)

    for k, blocks in alone_with_host(instance).items():
        costs = [copy_costs(instance.blocks[d], engines, prices.link, shares) for d in blocks]
        paid = [least_on_host(instance, k, blocks, checkpoints, prices.memory, prices.stream, costs, ends)]
        if here := fitting(instance, k):
            time = left[2 * bisect_left(checkpoints, k)] * min(algorithm.duration_ns for algorithm in here)
            paid.append(time + sum(map(on_device, blocks, costs)))
        total += min(paid) if min(paid) < NEVER else 0  # else there is no schedule, and any bound holds
    for d, block in enumerate(instance.blocks):
        if d in shared:
            continue
        cost = copy_costs(block, engines, prices.link, shares)
        if block.initially == "carried":
            if d in read_again:
                writers = (-1, *instance.writers[d])
                read = {writer: reads[d, writer] for writer in writers}
                there = {writer: readings.held.get((d, writer), {}) for writer in writers}
                total += cheapest_again(instance, d, checkpoints, read, prices.memory, cost, ends, there)
            else:
                total += on_device(d, cost)
            continue
        for version in _versions(instance, d, checkpoints):
            name = d, version.writer
            own = spared[d] if d in spared and version.writer == instance.writers[d][0] else {}
            held = readings.held.get(name, {})
            if name in makes or name in reads or own or held:
                until = {t + 1: 0 for t in (*own, *held)} | reads[name]
                course = course_of(instance, *name, checkpoints, until)
                total += cheapest(course, makes[name], reads[name], prices.memory, cost, own, held)
            else:
                total += _version_price(version, upto, saved, len(prices.memory), cost)
    for d in sorted(given.optional):
        block, k = given.blocks[d], given.writers[d][0]
        cost = copy_costs(block, engines, prices.link, shares)
        made = {j: prices.reruns.get((k, j, d), 0) * block.bytes for j in again.get(k, ())}
        held, begun = readings.held.get((d, k), {}), readings.made.get(d, 0)
        total += cheapest_optional(block, k, checkpoints, made, held, begun, prices.memory, cost)
    if instance.host_budget_bytes is not msgspec.UNSET:
        total -= sum(prices.host) * instance.host_budget_bytes
    for price, room in zip(prices.ends, _room_at_the_ends(instance), strict=False):
        total -= price * room
    return -(-total // one)


def _choices(given: Instance, least: Instance, k: int) -> Sequence[Choice]:
    """Return the algorithms of checkpoint k, each with what it alone has, of an instance and its least."""
    return choices_of(given, k) if given.tasks[k].reads_vary else [Choice(a) for a in fitting(least, k)]


def _paid_for_time(prices: Prices) -> list[Sequence[int]]:
    """Return the prices of the engines' time, and of the link's and the host's if there are any."""
    return [*prices.engines, *prices.link, *([prices.stream] if prices.stream else [])]


def _with_losses(prices: Prices, left: Sequence[int], slowed: Sequence[Slowed]) -> list[list[int]]:
    """Return the prices of time of copies out and of copies in, with what tasks lose by them.

    Prices are multiples of a million.
    """
    return [
        [
            price + share * parts[direction] // MILLION
            for price, share, parts in zip(prices.engines[-direction], left, slowed, strict=True)
        ]
        for direction in (0, 1)
    ]


def _room_at_the_ends(instance: Instance) -> Iterator[int]:
    """Yield the bytes of the pool, and of host memory if it has a budget, that carried blocks can have."""
    blocks = instance.blocks
    yield instance.pool_bytes - sum(block.bytes for block in blocks if block.finally_ == "device")
    if instance.host_budget_bytes is not msgspec.UNSET:
        begins = sum(
            block.bytes
            for block, uses in zip(blocks, instance.uses, strict=True)
            if block.initially == "host" and (uses or block.finally_ != "anywhere")
        )
        ends = sum(block.bytes for block in blocks if block.finally_ == "host")
        yield instance.host_budget_bytes - max(begins, ends)


def _saved_by_absence(prices: Prices) -> Sequence[int]:
    """Return, per instant, what a byte saves at most by being on the host and not on the device."""
    if not prices.host:
        return prices.memory
    return [max(here - there, 0) for here, there in zip(prices.memory, prices.host, strict=True)]


def _paid_runs(
    read: Reads,
    instance: Instance,
    checkpoints: Sequence[int],
    prices: Prices,
    again: Mapping[int, range],
) -> dict[tuple[int, int], int]:
    """Return what second runs are paid for what they make of versions that have not survived."""
    if not prices.survival:
        return {}
    last = last_needs(read, instance, checkpoints, again)
    return {
        (k, j): sum(wage for t, wage in paid.items() if t < j)
        for k, paid in wages(instance, prices.survival).items()
        for j in again.get(k, ())
        if j <= last[k]
    }


def _run_price(
    read: Reads,
    instance: Instance,
    prices: Prices,
    left: Sequence[int],
    paid: Mapping[tuple[int, int], int],
) -> int:
    """Return the least that second runs can pay, times the denominator; those without prices are left out."""
    least = least_times(instance)
    balances = {(k, j): left[j] * least[k] - wage for (k, j), wage in paid.items()}
    for (k, j, d), price in prices.reruns.items():
        amount = price * instance.blocks[d].bytes
        sign = 1 if d in read[k] else -1
        balances[k, j] = balances.get((k, j), left[j] * least[k]) + sign * amount
    return sum(min(balance, 0) for balance in balances.values())


_Dealings = defaultdict[tuple[int, int], dict[int, int]]
"""Payments for second runs by interval, times the denominator, for each block and writer of its version."""


def _dealings(
    read: Reads, instance: Instance, prices: Prices, again: Mapping[int, range]
) -> tuple[_Dealings, _Dealings]:
    """Return what versions pay to be made again, and what second runs pay for reading them."""
    makes: _Dealings = defaultdict(dict)
    reads: _Dealings = defaultdict(dict)
    for k, intervals in again.items():
        for d in instance.tasks[k].outputs:
            bytes_ = instance.blocks[d].bytes
            makes[d, k] = {j: prices.reruns.get((k, j, d), 0) * bytes_ for j in intervals}
    for (k, j, d), price in prices.reruns.items():
        if d in read[k]:
            before = bisect_left(instance.writers[d], k)
            paid = reads[d, instance.writers[d][before - 1] if before else -1]
            paid[j] = paid.get(j, 0) + price * instance.blocks[d].bytes
    return makes, reads


@dataclass(frozen=True, slots=True)
class _Version:
    """A version of a block at the checkpoints.

    Attributes
    ----------
    block, writer
        The block, and the task that writes the version; -1 if it is there from the start.
    ready
        First instant at which it can be on the host; None if it is there from the start.
    stays
        First and last instant of each stay between uses. A stay without instants has a last instant before
        its first.
    must_load
        Whether it is not on the device at the beginning of the first stay.
    must_leave
        Whether it must be on the host when the round ends.
    """

    block: Block
    writer: int
    ready: int | None
    stays: tuple[tuple[int, int], ...]
    must_load: bool
    must_leave: bool


def _versions(instance: Instance, d: int, checkpoints: Sequence[int]) -> list[_Version]:
    """Return the versions of a block: the one from the start, then that of each writer."""
    block, writers = instance.blocks[d], instance.writers[d]
    there = block.initially != "absent"
    marks = [*([-1] if there else []), *needed(instance, d)]
    stays: list[list[tuple[int, int]]] = [[] for _ in range(len(writers) + 1)]
    for after, until in pairwise(marks):
        first = 2 * bisect_right(checkpoints, after)
        last = 2 * bisect_left(checkpoints, until) - 1
        stays[bisect_right(writers, after)].append((first, last))
    # what a checkpoint writes can leave in the interval after it; what another task writes, in its own
    ready = [2 * bisect_right(checkpoints, writer) for writer in writers]
    return [
        _Version(
            block,
            writers[number - 1] if number else -1,
            ready[number - 1] if number else None,
            tuple(stays[number]),
            must_load=number == 0 and block.initially == "host" and len(marks) > 1,
            must_leave=0 < number == len(writers) and block.finally_ == "host",
        )
        for number in range(0 if there else 1, len(writers) + 1)
    ]


def _version_price(
    version: _Version, upto: Sequence[int], saved: Sequence[int], instants: int, costs: CopyCosts
) -> int:
    """Return the least that a version can pay for memory and copies, times the denominator.

    `upto` and `saved` are sums over the instants before each: of what a byte pays on the device, and of what
    it saves by its absence.
    """
    block, out_ns, out = version.block, costs.out_ns, costs.out
    rent = sum(block.bytes * (upto[last + 1] - upto[first]) for first, last in version.stays if first <= last)
    if version.ready is None:
        first_stay = version.stays[:1] if version.must_load else ()
        loaded = sum(_loaded(block, stay, saved, costs) for stay in first_stay)
        return (
            rent - loaded - sum(_savings(block, s, saved, costs)[0] for s in version.stays[len(first_stay) :])
        )
    if out_ns is None:
        return rent
    final = instants if version.must_leave else max((last for _, last in version.stays), default=-1)
    cheapest = out_ns * min(out[version.ready : final + 1], default=0)
    if not version.must_leave and rent <= cheapest:
        return rent
    # offloaded in interval j, it is away in whole stays that begin later, and from instant j on in its own
    stays = {first: _savings(block, (first, last), saved, costs) for first, last in version.stays}
    partly = {first + i: saving for first, savings in stays.items() for i, saving in enumerate(savings)}
    plans = [] if version.must_leave else [0]
    later = 0
    for j in range(final, version.ready - 1, -1):
        plans.append(later + partly.get(j, 0) - out_ns * out[j])
        later += partly[j] if j in stays else 0
    return rent - max(plans, default=0)


def _savings(block: Block, stay: tuple[int, int], saved: Sequence[int], costs: CopyCosts) -> list[int]:
    """Return, per instant of a stay, the saving of a block on the host from then on and prefetched later.

    The saving is zero if keeping the block is cheaper. A stay without instants saves nothing.
    """
    first, last = stay
    if costs.back_ns is None or first > last:
        return [0] * max(last - first + 1, 1)
    savings, best = [], 0
    for instant in range(last, first - 1, -1):
        gain = block.bytes * saved[instant + 1] - costs.back_ns * costs.back[instant + 1]
        best = gain if instant == last else max(best, gain)
        savings.append(max(0, best - block.bytes * saved[instant]))
    return savings[::-1]


def _loaded(block: Block, stay: tuple[int, int], saved: Sequence[int], costs: CopyCosts) -> int:
    """Return what a block that starts on the host saves in its first stay; negative if loading costs more."""
    first, last = stay
    if costs.back_ns is None:
        return 0
    return max(
        block.bytes * (saved[interval] - saved[first]) - costs.back_ns * costs.back[interval]
        for interval in range(first, last + 2)
    )


def _require_prices(
    given: Instance,
    read: Reads,
    instance: Instance,
    checkpoints: Sequence[int],
    prices: Prices,
    again: Mapping[int, range],
) -> None:
    if any(k >= following for k, following in pairwise([-1, *checkpoints, len(instance.tasks)])):
        raise ValueError("the checkpoints are not tasks in increasing order")
    instants, engines = 2 * len(checkpoints), 1 if instance.engines == "single" else 2
    if len(prices.memory) != instants or [len(p) for p in prices.engines] != [instants + 1] * engines:
        raise ValueError("there is not a price for every instant and every interval of every engine")
    if prices.denominator < 1 or min(prices.memory, default=0) < 0:
        raise ValueError("a price of memory is negative, or the denominator is not positive")
    for k in checkpoints:
        if instance.tasks[k].may_run_on_host:
            raise ValueError(f"checkpoint {k} is a task that may run on the host")
    if instance.has_host_work and again:
        raise ValueError("prices are not for second runs and work on the host together")
    if prices.host and (len(prices.host) != instants or instance.host_budget_bytes is msgspec.UNSET):
        raise ValueError("prices of host memory are one for each instant, where it has a budget")
    if min(prices.host, default=0) < 0:
        raise ValueError("a price of host memory is negative")
    if prices.ends and (not instance.carried or len(prices.ends) != 1 + instance.has_host_budget):
        raise ValueError(
            "prices at both ends are for carried blocks: one, and one more of host memory that ends"
        )
    if min(prices.ends, default=0) < 0:
        raise ValueError("a price at both ends is negative")
    if prices.stream and (len(prices.stream) != instants + 1 or not instance.has_host_work):
        raise ValueError("prices of the host's time are one for each interval, where tasks may run there")
    if prices.link and instance.link is msgspec.UNSET:
        raise ValueError("there are prices of a link, and the directions share none")
    if len(prices.link) not in (0, 1, len(LinkTimes._fields)) or any(
        len(paid) != instants + 1 for paid in prices.link
    ):
        raise ValueError("prices of a link are one for each interval, of the link or of each time on it")
    for j, paid in enumerate(zip(*_paid_for_time(prices), strict=True)):
        if min(paid) < 0 or sum(paid) > prices.denominator:
            raise ValueError(f"interval {j}: prices of the engines are negative or above one together")
    for (k, j, d), price in prices.reruns.items():
        if j not in again.get(k, ()) or d not in (*read[k], *given.tasks[k].outputs):
            raise ValueError(f"task {k} has no second run in interval {j} that touches block {d}")
        if price < 0:
            raise ValueError(f"task {k}, interval {j}: a price of block {d} is negative")
    require_survival(read, instance, checkpoints, prices.survival)
