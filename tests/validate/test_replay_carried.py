"""The replay of carried blocks: a round finds what the one before has left, and rules for both ends."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import msgspec
import pytest

from pebbler.instances.instance import Instance
from pebbler.instances.units import PAGE_BYTES
from pebbler.validate.replay.machine import replay
from pebbler.validate.schedule import Carried, HostResidence, MemoryModel, Operation, Residence, Schedule

from ..samples import counts
from .random_programs import MODELS, random_case
from .test_replay import block, faults, figure, operation, residence, task, without_residence
from .test_replay_host import Change, copy, without_copy

W, A, V = range(3)
FORWARD, STEP, IN, OUT = range(4)
SIZE = PAGE_BYTES

DEVICE, HOST, BOTH = "device", "host", "both"


def instance(*, frozen: bool = False, host: bool = False, **changes: object) -> Instance:
    """A pass reads the weights W and gives A, and a step reads A and updates W; a frozen W it only reads."""
    updates = {"inputs": (A, W)} if frozen else {"inputs": (A,), "updates": (W,)}
    made = Instance(
        name="net",
        engines="duplex",
        budget_bytes=3 * SIZE,
        resident_bytes=0,
        blocks=(block("w", initially="carried", bytes=SIZE), block("a", bytes=SIZE)),
        tasks=(task("forward", inputs=(W,), outputs=(A,)), task("step", **updates)),
        host_budget_bytes=2 * SIZE if host else msgspec.UNSET,
    )
    return msgspec.structs.replace(made, **changes)


def op(i: int, start: int, *after: int, d: int = W) -> Operation:
    kinds = {FORWARD: ("run", "compute"), STEP: ("run", "compute"), IN: ("prefetch", "h2d")}
    kind, stream = kinds.get(i, ("offload", "d2h"))
    run = kind == "run"
    return Operation(
        id=i,
        kind=kind,
        stream=stream,
        task=i if run else None,
        algorithm=0 if run else None,
        block=None if run else d,
        after=after,
        start_ns=start,
        end_ns=start + (5 if run else 3),
    )


Stay = tuple[int, int, int | None, tuple[int, ...]]
"""Block, place, what acquires it, and what releases it."""


def schedule(
    model: MemoryModel,
    state: str,
    operations: tuple[Operation, ...],
    stays: tuple[Stay, ...],
    copies: tuple[Stay, ...] | None,
    block: int = W,
) -> Schedule:
    """A program in a memory model; without `copies` host memory does not end."""

    def offset(at: int) -> int | None:
        return None if model == "divisible" else at * SIZE

    is_paged = model == "paged"
    device = {at for _, at, _, _ in stays}
    return Schedule(
        format="pebbler/schedule/1",
        instance="net",
        method="hand",
        memory_model=model,
        page_bytes=PAGE_BYTES if is_paged else None,
        operations=operations,
        residences=tuple(
            Residence(
                block=d,
                offset=None if is_paged else offset(at),
                extents=((at * SIZE, SIZE),) if is_paged else None,
                bytes=SIZE,
                acquired_by=acquired_by,
                released_after=released_after,
            )
            for d, at, acquired_by, released_after in stays
        ),
        makespan_ns=max(operation.end_ns for operation in operations),
        peak_bytes=2 * SIZE if model == "divisible" else (max(device) + 1) * SIZE,
        host_residences=msgspec.UNSET
        if copies is None
        else tuple(
            HostResidence(
                block=d,
                offset=offset(at),
                bytes=SIZE,
                acquired_by=acquired_by,
                released_after=released_after,
            )
            for d, at, acquired_by, released_after in copies
        ),
        host_peak_bytes=msgspec.UNSET if copies is None else SIZE * bool(copies),
        carried=(in_state(state, block),),
    )


def in_state(state: str, d: int = W) -> Carried:
    return Carried(block=d, device=state != HOST, host=state != DEVICE)


def program(name: str, model: MemoryModel = "contiguous", *, host: bool = False) -> Schedule:
    """A valid program; where W comes back to the device in paged memory, it does so on another page."""
    again = 2 if model == "paged" else 0
    a = (A, 1, FORWARD, (STEP,))
    match name:
        case "kept":  # on the device all the time
            state, operations = DEVICE, (op(FORWARD, 0), op(STEP, 5))
            stays, copies = ((W, 0, None, ()), a), ()
        case "away":  # on the device at both ends, and on the host between pass and step
            state = DEVICE
            operations = (op(FORWARD, 0), op(OUT, 5, FORWARD), op(IN, 8, OUT), op(STEP, 11, IN))
            stays = ((W, 0, None, (OUT,)), a, (W, again, IN, ()))
            copies = ((W, 0, OUT, (IN,)),)
        case "home":  # at home on the host
            state = HOST
            operations = (op(IN, 0), op(FORWARD, 3, IN), op(STEP, 8), op(OUT, 13, STEP))
            stays, copies = ((W, 0, IN, (OUT,)), a), ((W, 0, None, (IN,)), (W, 0, OUT, ()))
        case "both":  # on both at both ends; it leaves the device for nothing after the pass
            state = BOTH
            operations = (op(FORWARD, 0), op(IN, 5, FORWARD), op(STEP, 8, IN), op(OUT, 13, STEP))
            stays = ((W, 0, None, (FORWARD,)), a, (W, again, IN, ()))
            copies = ((W, 0, None, (IN,)), (W, 0, OUT, ()))
        case "frozen home":
            state, operations = HOST, (op(IN, 0), op(FORWARD, 3, IN), op(STEP, 8))
            stays, copies = ((W, 0, IN, (STEP,)), a), ((W, 0, None, ()),)
        case "frozen both":
            state, operations = BOTH, (op(FORWARD, 0), op(IN, 5, FORWARD), op(STEP, 8, IN))
            stays = ((W, 0, None, (FORWARD,)), a, (W, again, IN, ()))
            copies = ((W, 0, None, ()),)
        case "stale home":  # the host keeps what was there before the step
            state = HOST
            operations = (op(IN, 0), op(FORWARD, 3, IN), op(OUT, 8, FORWARD), op(STEP, 11, OUT))
            stays, copies = ((W, 0, IN, (STEP,)), a), ((W, 0, None, (IN,)), (W, 0, OUT, ()))
        case "stale away":  # what was there before the step comes back after it
            state = DEVICE
            operations = (op(FORWARD, 0), op(OUT, 5, FORWARD), op(STEP, 8, OUT), op(IN, 13, STEP))
            stays = ((W, 0, None, (STEP,)), a, (W, again, IN, ()))
            copies = ((W, 0, OUT, (IN,)),)
        case _:
            raise KeyError(name)
    return schedule(model, state, operations, stays, copies if host else None)


VALID = ("kept", "away", "home", "both")
FROZEN = ("kept", "frozen home", "frozen both")


@pytest.mark.parametrize("host", [False, True])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    ("name", "frozen"), [*((name, False) for name in VALID), *((name, True) for name in FROZEN)]
)
def test_a_program_that_leaves_what_it_finds_survives(
    name: str, frozen: bool, model: MemoryModel, host: bool
) -> None:
    good = program(name, model, host=host)
    assert faults(instance(frozen=frozen, host=host), good, draws=100) == []


@pytest.mark.parametrize("host", [False, True])
@pytest.mark.parametrize("name", VALID)
def test_it_is_also_a_program_where_its_blocks_begin_on_the_device(name: str, host: bool) -> None:
    carried = instance(host=host)
    blocks = (msgspec.structs.replace(carried.blocks[W], initially="device"), carried.blocks[A])
    relaxed = msgspec.structs.replace(carried, blocks=blocks)
    schedule = figure(carried=msgspec.UNSET)(program(name, host=host))
    assert faults(relaxed, schedule) == []


def states(*several: Carried) -> Change:
    return figure(carried=several)


@pytest.mark.parametrize(
    ("name", "change", "expected"),
    [
        (
            "kept",
            figure(carried=msgspec.UNSET),
            ["rule: the list carried is of None, the instance carries [0]"],
        ),
        ("kept", states(), ["rule: the list carried is of [], the instance carries [0]"]),
        (
            "kept",
            states(in_state(DEVICE), in_state(DEVICE, A)),
            ["rule: the list carried is of [0, 1], the instance carries [0]"],
        ),
        (
            "kept",
            states(in_state(HOST)),
            [
                "rule: residences[0] is there from the start, and its block is not",
                "rule: 'w' lasts to the end, unlike its state",
                "data: run of 'forward' (id 0) does not find 'w'",
            ],
        ),
        ("kept", states(in_state(BOTH)), ["data: 'w' is not on the host at the end"]),
        (
            "kept",
            without_residence(0),
            ["rule: 'w' is not there from the start, unlike its state"],
        ),
        (
            "kept",
            residence(0, released_after=(STEP,)),
            [
                "data: 'w' is not on the device at the end",
                "data: in the second round, run of 'forward' (id 0) does not find 'w'",
            ],
        ),
        (
            "away",
            residence(2, offset=2 * SIZE),
            [
                "rule: 'w' ends at another offset than it begins",
                "data: in the second round, run of 'forward' (id 0) does not find 'w'",
            ],
        ),
        ("away", states(in_state(BOTH)), ["data: 'w' is not on the host at the end"]),
        (
            "away",
            operation(2, after=(FORWARD,)),
            [
                "data: prefetch of 'w' (id 2) does not find 'w' on the host",
                "data: in the second round, prefetch of 'w' (id 2) does not find 'w' on the host",
            ],
        ),
        (
            "stale away",
            states(in_state(DEVICE)),
            [
                "rule: prefetch of 'w' (id 2) copies an outdated 'w' on the host",
                "data: 'w' is not on the device at the end",
                "data: in the second round, run of 'forward' (id 0) finds version 0 of 'w', not 1",
            ],
        ),
        (
            "home",
            states(in_state(DEVICE)),
            [
                "data: prefetch of 'w' (id 2) does not find 'w' on the host",
                "rule: 'w' is not there from the start, unlike its state",
                "data: 'w' is not on the device at the end",
            ],
        ),
        ("home", residence(0, released_after=()), ["rule: 'w' lasts to the end, unlike its state"]),
        (
            "stale home",
            states(in_state(HOST)),
            [
                "data: 'w' is not on the host at the end",
                "rule: in the second round, prefetch of 'w' (id 2) copies an outdated 'w' on the host",
                "data: in the second round, run of 'forward' (id 0) finds version 0 of 'w', not 1",
            ],
        ),
        (
            "both",
            states(in_state(DEVICE)),
            ["data: prefetch of 'w' (id 2) does not find 'w' on the host"],
        ),
        (
            "both",
            states(in_state(HOST)),
            [
                "rule: residences[0] is there from the start, and its block is not",
                "rule: 'w' lasts to the end, unlike its state",
            ],
        ),
        (
            "both",
            residence(2, offset=2 * SIZE),
            [
                "rule: 'w' ends at another offset than it begins",
                "data: in the second round, run of 'forward' (id 0) does not find 'w'",
            ],
        ),
        (
            "both",
            operation(3, after=(FORWARD,)),
            [
                "data: 'w' is not on the host at the end",
                "data: in the second round, prefetch of 'w' (id 2) does not find 'w' on the host",
            ],
        ),
    ],
)
def test_what_cannot_be_repeated_is_found(name: str, change: Change, expected: list[str]) -> None:
    assert set(expected) <= set(faults(instance(), change(program(name))))


@pytest.mark.parametrize(
    ("name", "change", "expected"),
    [
        (
            "away",
            copy(0, released_after=()),
            ["rule: 'w' on the host lasts to the end, unlike its state"],
        ),
        (
            "both",
            states(in_state(DEVICE)),
            [
                "rule: host_residences[0] is there from the start, and its block is nowhere",
                "rule: 'w' on the host lasts to the end, unlike its state",
                "data: prefetch of 'w' (id 2) does not find 'w' on the host",
            ],
        ),
        ("kept", states(in_state(BOTH)), ["rule: 'w' on the host is not there from the start"]),
        (
            "home",
            without_copy(0),
            [
                "rule: 'w' on the host is not there from the start, unlike its state",
                "data: prefetch of 'w' (id 2) has no place for 'w' on the host",
            ],
        ),
        (
            "home",
            copy(1, released_after=(OUT,)),
            [
                "data: 'w' is not on the host at the end",
                "data: in the second round, prefetch of 'w' (id 2) does not find 'w' on the host",
            ],
        ),
        (
            "home",
            copy(1, offset=SIZE),
            [
                "rule: 'w' on the host ends at another offset than it begins",
                "data: in the second round, prefetch of 'w' (id 2) does not find 'w' on the host",
            ],
        ),
        (
            "stale home",
            states(in_state(HOST)),
            [
                "data: 'w' is not on the host at the end",
                "data: in the second round, run of 'forward' (id 0) finds version 0 of 'w', not 1",
            ],
        ),
        (
            "frozen both",
            states(in_state(BOTH)),
            [
                "data: 'w' is not on the host at the end",
                "data: in the second round, run of 'step' (id 1) finds version 0 of 'w', not 1",
            ],
        ),
    ],
)
def test_what_cannot_be_repeated_in_host_memory_that_ends_is_found(
    name: str, change: Change, expected: list[str]
) -> None:
    found = faults(instance(host=True), change(program(name, host=True)))
    for fault in expected:
        assert any(text.startswith(fault) for text in found), fault


def test_stale_weights_are_found_in_divisible_memory_and_on_pages() -> None:
    for model in ("divisible", "paged"):
        found = faults(instance(), program("stale away", model))
        assert "data: 'w' is not on the device at the end" in found
        assert "data: in the second round, run of 'forward' (id 0) finds version 0 of 'w', not 1" in found


def test_a_state_without_the_host_forgets_what_the_host_still_has() -> None:
    """W goes to the host after the step, but the next round may not read it there: its state says so."""
    good = program("both")
    kept = (msgspec.structs.replace(good.residences[0], released_after=()), good.residences[1])
    forward, _, step, out = good.operations
    operations = (
        forward,
        msgspec.structs.replace(step, after=(), start_ns=5, end_ns=10),
        msgspec.structs.replace(out, start_ns=10, end_ns=13),
    )
    kept_and_copied = msgspec.structs.replace(
        good, operations=operations, residences=kept, makespan_ns=13, carried=(in_state(DEVICE),)
    )
    assert faults(instance(), kept_and_copied) == []
    read = states(in_state(DEVICE))(good)
    found = faults(instance(), read)
    assert "data: in the second round, prefetch of 'w' (id 2) does not find 'w' on the host" in found


@pytest.fixture
def two() -> Instance:
    """W and V are never written."""
    names = ("w", "a", "v")
    blocks = tuple(block(n, bytes=SIZE, initially="absent" if n == "a" else "carried") for n in names)
    tasks = (task("forward", inputs=(W, V), outputs=(A,)), task("step", inputs=(A, W, V)))
    return instance(blocks=blocks, tasks=tasks)


@pytest.fixture
def exchange() -> Callable[[MemoryModel], Schedule]:
    """W and V leave for nothing, and each comes back to where the other was."""

    def exchanged(model: MemoryModel) -> Schedule:
        operations = (
            op(FORWARD, 0),
            op(IN, 5, FORWARD),
            msgspec.structs.replace(op(IN, 8, FORWARD, d=V), id=OUT),
            op(STEP, 11, IN, OUT),
        )
        stays = (
            (W, 0, None, (FORWARD,)),
            (V, 1, None, (FORWARD,)),
            (A, 2, FORWARD, (STEP,)),
            (W, 1, IN, ()),
            (V, 0, OUT, ()),
        )
        made = schedule(model, BOTH, operations, stays, None)
        carried = (in_state(BOTH), in_state(BOTH, V))
        return msgspec.structs.replace(made, peak_bytes=3 * SIZE, carried=carried)

    return exchanged


def test_blocks_exchange_their_pages_but_not_their_offsets(
    two: Instance, exchange: Callable[[MemoryModel], Schedule]
) -> None:
    assert faults(two, exchange("paged"), draws=100) == []
    assert faults(two, exchange("divisible"), draws=100) == []
    assert set(faults(two, exchange("contiguous"))) == {
        "rule: 'w' ends at another offset than it begins",
        "rule: 'v' ends at another offset than it begins",
        "data: in the second round, run of 'forward' (id 0) does not find 'w'",
        "data: in the second round, run of 'forward' (id 0) does not find 'v'",
    }


def test_pages_of_one_block_end_in_another_order() -> None:
    """W has a page and a half. At the end its second page is where its first one was."""
    large = instance()
    large = msgspec.structs.replace(
        large,
        budget_bytes=4 * SIZE,
        blocks=(msgspec.structs.replace(large.blocks[W], bytes=SIZE * 3 // 2), large.blocks[A]),
    )
    good = program("both", "paged")
    w, a, again = (
        msgspec.structs.replace(r, bytes=SIZE * 3 // 2 if r.block == W else SIZE) for r in good.residences
    )
    good = msgspec.structs.replace(
        good,
        residences=(
            msgspec.structs.replace(w, extents=((2 * SIZE, 2 * SIZE),)),
            a,
            msgspec.structs.replace(again, extents=((3 * SIZE, SIZE), (0, SIZE))),
        ),
        peak_bytes=4 * SIZE,
    )
    assert faults(large, good, draws=100) == []
    twice = residence(2, extents=((2 * SIZE, SIZE),) * 2)(good)
    assert "rule: residences[2] has a page twice" in faults(large, twice)
    cut = residence(2, extents=((2 * SIZE + 1, 2 * SIZE),))(good)
    assert "rule: residences[2] is not of whole pages" in faults(large, cut)
    short = residence(2, extents=((2 * SIZE, SIZE),))(good)
    assert "rule: residences[2] has too many or too few pages" in faults(large, short)
    assert "data: in the second round, run of 'forward' (id 0) does not find 'w'" in faults(large, short)


def test_the_second_round_has_durations_of_its_own() -> None:
    """The step does not wait for W, which at nominal durations is there in time."""
    blocks = instance().blocks
    late = instance(blocks=blocks, tasks=(task("forward", outputs=(A,)), task("step", inputs=(A, W))))
    racy = schedule(
        "contiguous",
        HOST,
        (op(IN, 0), op(FORWARD, 0), op(STEP, 5)),
        ((W, 0, IN, (STEP,)), (A, 1, FORWARD, (STEP,))),
        None,
    )
    found = {str(fault) for seed in range(60) for fault in replay(late, racy, None, Random(seed))}
    assert "data: in the second round, run of 'step' (id 1) does not find 'w'" in found
    assert all("in the second round" in fault for fault in found)
    waits = operation(2, after=(IN,))(racy)
    assert not [fault for seed in range(60) for fault in replay(late, waits, None, Random(seed))]


def test_what_is_not_carried_starts_every_round_anew() -> None:
    """X begins on the device in its first version in every round, and where it ended is free."""
    base = instance()
    blocks = (*base.blocks, block("x", bytes=SIZE, initially="device"))
    tasks = (task("forward", inputs=(W,), updates=(V,), outputs=(A,)), base.tasks[1])
    good = program("kept")
    held = Residence(block=V, offset=2 * SIZE, bytes=SIZE)
    good = msgspec.structs.replace(good, residences=(*good.residences, held), peak_bytes=3 * SIZE)
    assert faults(instance(blocks=blocks, tasks=tasks), good) == []


def fits(schedule: Schedule, instance: Instance, state: Carried) -> bool:
    """Whether a block of a valid program is in a state at both ends."""
    d, index = state.block, {op.id: i for i, op in enumerate(schedule.operations)}

    def at_both_ends(all_stays: tuple[Residence, ...] | tuple[HostResidence, ...], there: bool) -> bool:
        stays = [stay for stay in all_stays if stay.block == d]
        stays.sort(key=lambda stay: -1 if stay.acquired_by is None else index[stay.acquired_by])
        begins = bool(stays) and stays[0].acquired_by is None
        ends = bool(stays) and not stays[-1].released_after
        return begins == ends == there and (not there or stays[0].offset == stays[-1].offset)

    if not at_both_ends(schedule.residences, state.device):
        return False
    steps = [
        "write" if op.kind == "run" else op.kind
        for op in schedule.operations
        if op.block == d or (op.kind == "run" and op.task in instance.writers[d])
    ]
    writes = [i for i, step in enumerate(steps) if step == "write"]
    is_copied = not writes or "offload" in steps[writes[-1] :]
    if instance.has_host_budget:
        return at_both_ends(schedule.host_copies, state.host) and (is_copied or not state.host)
    reads_first = "prefetch" in steps and "offload" not in steps[: steps.index("prefetch")]
    return is_copied if state.host else not reads_first


@pytest.mark.parametrize("host", [False, True])
@pytest.mark.parametrize("count", counts(60, 400))
def test_random_programs_can_be_repeated_where_they_leave_what_they_find(host: bool, count: int) -> None:
    """Blocks that begin somewhere are carried, in random states; those that do not fit one are found."""
    rng = Random(8)
    seen: dict[bool, set[tuple[MemoryModel, bool, bool]]] = {True: set(), False: set()}
    for _ in range(count):
        ordinary, schedule = random_case(rng, host=host)
        begun = [d for d, block in enumerate(ordinary.blocks) if block.initially != "absent"]
        options = [in_state(state, d) for d in begun for state in (DEVICE, HOST, BOTH)]
        right = {option.block: option for option in options if fits(schedule, ordinary, option)}
        wrong = rng.choice([option for option in options if not fits(schedule, ordinary, option)])
        for is_right, chosen in ((True, right), (False, {**right, wrong.block: wrong})):
            if not chosen:
                continue
            blocks = tuple(
                msgspec.structs.replace(block, initially="carried", finally_="anywhere")
                if d in chosen
                else block
                for d, block in enumerate(ordinary.blocks)
            )
            carried = msgspec.structs.replace(ordinary, blocks=blocks)
            named = states(*(chosen[d] for d in sorted(chosen)))(schedule)
            assert (faults(carried, named, draws=10) == []) == is_right, (carried, named)
            seen[is_right] |= {(schedule.memory_model, state.device, state.host) for state in chosen.values()}
    for kinds in seen.values():
        assert len(kinds) == 9


def test_an_instance_that_carries_nothing_has_no_list() -> None:
    base = instance()
    blocks = (msgspec.structs.replace(base.blocks[W], initially="device"), base.blocks[A])
    ordinary = instance(blocks=blocks)
    assert faults(ordinary, figure(carried=msgspec.UNSET)(program("kept"))) == []
    assert faults(ordinary, program("kept")) == ["rule: the list carried is of [0], the instance carries []"]
    assert faults(ordinary, states()(program("kept"))) == [
        "rule: the list carried is of [], the instance carries []"
    ]
