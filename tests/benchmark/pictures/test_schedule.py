from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from io import BytesIO

import msgspec
import numpy as np
import pytest
from matplotlib import rc_context
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.text import Text

from pebbler import Workload, solve
from pebbler.benchmark.comparison.compare import compare
from pebbler.benchmark.comparison.frontier import Frontier, Point
from pebbler.benchmark.output.series import COLOURS, GREY
from pebbler.benchmark.pictures import frontier as frontiers
from pebbler.benchmark.pictures import schedule as schedules
from pebbler.benchmark.pictures import streams
from pebbler.benchmark.pictures.frontier import frontier_picture
from pebbler.benchmark.pictures.schedule import overview, timeline
from pebbler.benchmark.pictures.streams import Panel, draw_times
from pebbler.heuristics.methods import Limits, Method
from pebbler.heuristics.program.builder import ProgramBuilder
from pebbler.instances.instance import Algorithm, Block, Instance, Link, Slowdown, Task
from pebbler.validate.schedule import Schedule

from ...samples import mostly_slow

Toys = Callable[..., None]
FORWARD, BACKWARD, STALL = "#56B4E9", "#0072B2", "#D55E00"
OFFLOAD, PREFETCH, RESIDENT, WORKSPACE = "#E69F00", "#009E73", "#999999", "#CC79A7"
BLOCKS = "#A6D3EE"
CARRIED, UPDATE = "#3E8FB0", "#661100"
MADE = "2026-01-02: a machine"
LEGEND = 1200
"""More pixels of a colour than its entry in a legend has."""


@lru_cache(maxsize=4)
def decoded(png: bytes) -> np.ndarray:
    """The red, green and blue of a picture, in 256 steps."""
    return np.moveaxis((imread(BytesIO(png))[..., :3] * 255).round().astype(np.uint8), -1, 0)


def pixels(png: bytes, colour: str) -> int:
    """How many pixels of a picture have a colour, or one step from it."""
    steps = [round(255 * share) for share in to_rgb(colour)]
    near = [
        (channel >= max(step, 1) - 1) & (channel <= min(step, 254) + 1)
        for channel, step in zip(decoded(png), steps, strict=True)
    ]
    return int(np.count_nonzero(near[0] & near[1] & near[2]))


_DRAWN: dict[tuple[bytes, bytes], bytes] = {}


def drawn(instance: Instance, schedule: Schedule) -> bytes:
    """The timeline that says when and where it was made; several tests look at the same."""
    key = msgspec.json.encode(instance), msgspec.json.encode(schedule)
    if key not in _DRAWN:
        _DRAWN[key] = timeline(instance, schedule, MADE)
    return _DRAWN[key]


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures are their texts, and nothing is rendered."""

    def texts(figure: Figure) -> bytes:
        found = " ".join(text.get_text() for text in figure.findobj(Text))  # type: ignore[attr-defined]
        return " ".join(found.split()).encode()

    for module in (schedules, frontiers, streams):
        monkeypatch.setattr(module, "png", texts)


def schedule_by(method: Method, instance: Instance) -> Schedule:
    schedule = method(instance, Limits()).schedule
    assert schedule is not None
    return schedule


def test_a_timeline_shows_what_each_stream_does(tight: Instance, swap: Method) -> None:
    picture = drawn(tight, schedule_by(swap, tight))
    for colour in (FORWARD, BACKWARD, STALL, OFFLOAD, PREFETCH, RESIDENT):
        assert pixels(picture, colour) > LEGEND, colour


def test_a_timeline_need_not_say_how_it_was_made(chain: Instance, keep: Method) -> None:
    silent = timeline(chain, schedule_by(keep, chain))
    assert pixels(silent, FORWARD) > LEGEND
    assert silent != drawn(chain, schedule_by(keep, chain))


@pytest.mark.parametrize("budget", mostly_slow((2**23, 2**40), [2**40]), ids=["near", "a terabyte"])
def test_where_host_memory_ends_its_copies_are_drawn_below(
    tight: Instance, swap: Method, budget: int
) -> None:
    """Copies have the colour of blocks, so that there is more of it than above."""
    limited = msgspec.structs.replace(tight, host_budget_bytes=budget)
    free = drawn(tight, schedule_by(swap, tight))
    below = drawn(limited, schedule_by(swap, limited))
    assert decoded(below).shape[1] > decoded(free).shape[1]
    assert pixels(below, BLOCKS) > pixels(free, BLOCKS) + LEGEND


def test_a_steady_state_shows_what_is_carried_and_updated(chain: Instance, keep: Method) -> None:
    instance = Workload("lenet", 4, "K40", steady=True, optimizer="adam").instance("64MiB")
    schedule = solve(instance, "modnn").schedule
    assert schedule is not None
    assert all(state.device for state in schedule.states)
    picture, ordinary = timeline(instance, schedule), drawn(chain, schedule_by(keep, chain))
    for colour in (CARRIED, UPDATE):
        assert pixels(picture, colour) > LEGEND, colour
        assert pixels(ordinary, colour) == 0, colour
    plain = msgspec.structs.replace(schedule, carried=msgspec.UNSET)
    assert pixels(timeline(instance, plain), CARRIED) == 0


def test_runs_on_the_host_have_a_row_of_their_own(on_host: tuple[Instance, Schedule]) -> None:
    instance, schedule = on_host
    picture = timeline(instance, schedule)
    assert pixels(picture, UPDATE) > LEGEND
    assert pixels(picture, FORWARD) > LEGEND
    alone = msgspec.structs.replace(schedule, operations=schedule.operations[:1])
    assert pixels(timeline(instance, alone), FORWARD) > 1.2 * pixels(picture, FORWARD)


@pytest.mark.usefixtures("written")
def test_a_timeline_says_what_link_and_tasks_are_like(on_host: tuple[Instance, Schedule]) -> None:
    instance, schedule = on_host
    linked = msgspec.structs.replace(instance, link=Link(both_bytes_per_second=10**9))
    task = msgspec.structs.replace(instance.tasks[0], slowdown_ppm=Slowdown(offload=1))
    slowed = msgspec.structs.replace(instance, tasks=(task, *instance.tasks[1:]))
    texts = [timeline(one, schedule) for one in (instance, linked, slowed)]
    assert len(set(texts)) == 3


def test_a_timeline_without_copies_shows_none(chain: Instance, keep: Method) -> None:
    picture = drawn(chain, schedule_by(keep, chain))
    assert pixels(picture, FORWARD) > LEGEND
    assert pixels(picture, OFFLOAD) == pixels(picture, PREFETCH) == 0
    assert pixels(picture, STALL) < LEGEND
    assert pixels(picture, WORKSPACE) < LEGEND


def test_a_timeline_shows_workspaces(chain: Instance) -> None:
    builder = ProgramBuilder(chain)
    for k in range(len(chain.tasks)):
        builder.run(k, 1)
        builder.release_dead(k)
    assert pixels(drawn(chain, builder.finish("fast")), WORKSPACE) > LEGEND


@pytest.mark.parametrize(
    "budget", mostly_slow((5 * 2**20, 2**40), [2**40]), ids=["at the peak", "a terabyte"]
)
def test_a_timeline_scales_with_the_memory_in_use(chain: Instance, keep: Method, budget: int) -> None:
    instance = msgspec.structs.replace(chain, budget_bytes=budget)
    picture = timeline(instance, schedule_by(keep, instance), MADE)
    assert pixels(picture, RESIDENT) > 50_000


def test_a_single_engine_has_one_row_of_copies(tight: Instance, swap: Method) -> None:
    duplex = drawn(tight, schedule_by(swap, tight))
    single = msgspec.structs.replace(tight, engines="single")
    joint = timeline(single, schedule_by(swap, single), MADE)
    assert pixels(joint, FORWARD) > pixels(duplex, FORWARD)


def test_thousands_of_operations_stay_visible() -> None:
    count = 4000
    instance = Instance(
        name="long",
        engines="duplex",
        budget_bytes=10**9,
        resident_bytes=10**6,
        blocks=tuple(Block(name=f"Y{k}", bytes=4096, offload_ns=800, prefetch_ns=800) for k in range(count)),
        tasks=tuple(
            Task(
                name=f"FP({k})",
                inputs=(k - 1,) if k else (),
                outputs=(k,),
                algorithms=(Algorithm(name="only", duration_ns=1000, workspace_bytes=0),),
            )
            for k in range(count)
        ),
    )
    builder = ProgramBuilder(instance)
    for k in range(count):
        builder.run(k, 0)
        if k:
            builder.offload(k - 1)
            builder.release(k - 1)
    picture = timeline(instance, builder.finish("long"), MADE)
    assert pixels(picture, FORWARD) > 100_000
    assert pixels(picture, OFFLOAD) > 1000


@pytest.mark.usefixtures("written")
def test_pictures_say_when_and_where(tight: Instance, toys: Toys, keep: Method, swap: Method) -> None:
    toys(keep=keep, swap=swap)
    comparison = compare(tight)
    panel = Panel("conv1", {"conv1": {1: 1.0, 2: 1.5}}, {"conv1": 2})
    asked = Frontier(
        instance="tight",
        instance_sha256="",
        method="swap",
        memory_model="contiguous",
        seed=0,
        time_limit=None,
        ideal_ns=1,
        least_budget_bytes=1,
        peak_bytes=2,
    )
    for draw in (
        lambda made: timeline(tight, comparison.rows[1].schedules[0], made),
        lambda made: overview(comparison, made),
        lambda made: draw_times([[panel]], "corrected", made),
        lambda made: frontier_picture([msgspec.structs.replace(asked, made=(made,))]),
    ):
        assert MADE.encode() in draw(MADE)
        assert b"2026-01-03: another machine" in draw("2026-01-03: another machine")


def test_a_picture_of_streams_has_six_colours_and_the_rest_in_grey() -> None:
    def shown(layers: int) -> dict[str, int]:
        gains = {f"net/conv{i}": {1: 1.0, 2: 1.1 + i / 10, 4: 1.2 + i / 5} for i in range(layers)}
        picture = draw_times([[Panel("net", gains, dict.fromkeys(gains, 2))]], "corrected", MADE)
        return {colour: pixels(picture, colour) for colour in (*COLOURS, GREY)}

    six, nine = shown(6), shown(9)
    assert all(six[colour] > 300 and nine[colour] > 300 for colour in COLOURS)
    assert nine[GREY] > six[GREY] + 300


def frontier(method: str, *times: int) -> Frontier:
    """Schedules of so many milliseconds under 1, 2, ... MiB, each with a bound of half its time."""
    points = [
        Point(
            budget_bytes=i * 2**20,
            makespan_ns=time * 10**6,
            solved_at_bytes=i * 2**20,
            lower_bound_ns=time * 10**6 // 2,
            bound_by="compute",
            certified_lower_bound_ns=time * 10**6 // 2,
            own_makespan_ns=time * 10**6,
            own_lower_bound_ns=time * 10**6 // 2,
            own_bound_by="compute",
            stopped_by="done",
            method=method,
        )
        for i, time in enumerate(times, start=1)
    ]
    return Frontier(
        instance="tight",
        instance_sha256="",
        method=method,
        memory_model="contiguous",
        seed=0,
        time_limit=None,
        ideal_ns=1,
        least_budget_bytes=2**20,
        peak_bytes=len(times) * 2**20,
        points=tuple(points),
    )


def test_frontiers_of_several_methods_have_a_colour_each() -> None:
    picture = frontier_picture([frontier(name, 40 + 9 * i, 10 + 9 * i) for i, name in enumerate("abcdefg")])
    assert all(pixels(picture, colour) > 300 for colour in (*COLOURS, GREY))


def test_pictures_are_the_same_bytes_whatever_the_settings(
    tight: Instance, toys: Toys, keep: Method, swap: Method
) -> None:
    toys(keep=keep, swap=swap)
    comparison = compare(tight)
    schedule = schedule_by(swap, tight)
    before = drawn(tight, schedule), overview(comparison, MADE)
    with rc_context({"lines.linewidth": 5, "axes.facecolor": "red", "font.size": 20}):
        assert (timeline(tight, schedule, MADE), overview(comparison, MADE)) == before
    assert all(picture.startswith(b"\x89PNG") for picture in before)


def test_an_overview_splits_time_into_compute_and_stall(
    tight: Instance, chain: Instance, toys: Toys, keep: Method, swap: Method
) -> None:
    toys(keep=keep, swap=swap)
    stalling, steady = overview(compare(tight, ["swap"]), MADE), overview(compare(chain, ["keep"]), MADE)
    assert pixels(stalling, STALL) > LEGEND > pixels(steady, STALL)
    assert pixels(stalling, FORWARD) > LEGEND


def test_an_overview_without_any_schedule_is_a_picture_of_reasons(
    tight: Instance, toys: Toys, keep: Method
) -> None:
    toys(keep=keep)
    assert pixels(overview(compare(tight), MADE), FORWARD) < LEGEND
