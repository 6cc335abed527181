"""The report: its figures are those of the runs, its files are whole, its page stands alone."""

from __future__ import annotations

import csv
import dataclasses
import json
import math
import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Annotation
from msgspec.structs import replace

from pebbler.benchmark.output.machine import origin
from pebbler.benchmark.output.series import GREY
from pebbler.benchmark.report.exhibits import (
    Exhibit,
    anytime,
    cactus,
    exhibits,
    gap_table,
    heat_map,
    performance_profile,
    time_against_budget,
    win_loss,
)
from pebbler.benchmark.report.page import page
from pebbler.benchmark.report.report import write_report
from pebbler.benchmark.sweeps.evaluation import Evaluation, evaluate
from pebbler.benchmark.sweeps.jobs import Found, Setting
from pebbler.benchmark.sweeps.problems import About
from pebbler.benchmark.sweeps.results import Results, Run
from pebbler.instances.errors import PebblerError
from pebbler.instances.files import write_instance
from pebbler.instances.transforms import split_parts, with_link
from pebbler.instances.workload import Workload

from ..swept import SMALL, swept

BUDGETS = """
[[sweep.workloads]]
network = "alexnet"
batch = 32
device = "K40"
budgets = ["1.1xMmin", "2xMmin", "100%"]
"""


def made(problem: str, method: str, iteration: int | None, bound: int, **changes: object) -> Run:
    """A run on a problem that is its own checksum, under a budget of 100 bytes."""
    setting = {key: changes.pop(key) for key in ("memory_model", "without", "time_limit") if key in changes}
    found = Found(
        status="unknown" if iteration is None else "feasible",
        stopped_by="done",
        iteration_ns=iteration,
        ideal_ns=bound,
        lower_bound_ns=bound,
        bound_by="compute",
        certified=True,
        trace=((2.0, iteration, bound),),
        solve_seconds=2.0,
    )
    run = Run(
        fingerprint=f"{problem} {method}",
        about=About(problem, problem, "family", "net", 8, "K40", "executable", "8", "duplex", 5, 100),
        seed=0,
        setting=Setting(method, **setting),  # type: ignore[arg-type]
        found=found,
        wall_seconds=3.0,
        date="2026-01-02",
        origin=origin(),
    )
    parts = {name: changes.pop(name) for name in list(changes) if name in Found.__struct_fields__}
    return replace(run, found=replace(found, **parts), **changes)


@pytest.fixture
def evaluation() -> Evaluation:
    """Two methods on four problems: b is ahead on two, a on one, and on one only a has a schedule."""
    times = {"p": (110, 100), "q": (120, 100), "r": (100, 130), "s": (150, None)}
    return evaluate(
        [
            made(problem, method, ns, 100)
            for problem, row in times.items()
            for method, ns in zip("ab", row, strict=True)
        ]
    )


def test_gaps_are_from_the_best_bound_that_any_run_proved() -> None:
    runs = [made("p", "a", 120, 80), made("p", "b", 130, 100), made("p", "c", None, 90)]
    evaluation = evaluate(runs)
    assert [evaluation.gap(run) for run in runs] == [0.2, 0.3, math.inf]


def test_bounds_of_one_memory_model_say_nothing_of_another() -> None:
    runs = [made("p", "a", 120, 110), made("p", "a", 105, 100, memory_model="paged")]
    evaluation = evaluate(runs)
    assert [evaluation.gap(run) for run in runs] == [10 / 110, 0.05]
    assert list(evaluation.settings.values()) == ["a, contiguous", "a, paged"]


def test_relaxations_are_no_solutions() -> None:
    relaxed = made("p", "a", 105, 100, memory_model="divisible")
    evaluation = evaluate([made("p", "a", 120, 110), relaxed])
    assert [run.setting.memory_model for run in evaluation.runs] == ["contiguous"]
    with pytest.raises(PebblerError, match="there are no runs to report"):
        evaluate([relaxed])


def test_bounds_of_a_problem_say_nothing_of_what_a_planner_made_of_it() -> None:
    planned = made("p", "b", 90, 80, instances=("other",))
    evaluation = evaluate([made("p", "a", 120, 100, instances=("p",)), planned])
    assert [evaluation.gap(run) for run in evaluation.runs] == [0.2, 0.125]
    auto = [made("p", method, time, time) for method, time in (("a", 100), ("b", 90))]
    auto = [replace(run, about=dataclasses.replace(run.about, rounds_of="auto")) for run in auto]
    assert [evaluate(auto).gap(run) for run in auto] == [0, 0]


def test_bounds_of_parts_say_nothing_of_parts_that_are_computed_again(tmp_path: Path) -> None:
    slow = with_link(Workload("resnet34", 8, "V100").instance("60%"), "100MB")
    write_instance(split_parts(slow, 64 * 2**20), tmp_path / "slow.instance.json")
    methods = 'methods = ["modnn", "memonger-rule"]'
    with Results(swept(tmp_path, f'title = "t"\n[[sweep]]\nfiles = ["*.json"]\n{methods}')) as results:
        evaluation = evaluate(results.runs())
    by_method = {run.setting.method: run for run in evaluation.runs}
    again = by_method["memonger-rule"]
    copying, own = evaluation.bound(by_method["modnn"]), evaluation.bound(again)
    assert copying is not None
    assert own is not None
    assert again.found.iteration_ns is not None
    assert own.lower_bound_ns <= again.found.iteration_ns < copying.lower_bound_ns


def test_schedule_that_contradicts_a_bound_is_refused() -> None:
    with pytest.raises(PebblerError, match="99 ns by a contradicts the compute bound of 100 ns"):
        evaluate([made("p", "a", 99, 90), made("p", "b", 120, 100)])


def test_word_that_another_run_refutes_falls_back_to_what_is_certified(
    caplog: pytest.LogCaptureFixture,
) -> None:
    word = {"bound_by": "flow", "certified": False}
    honest, liar = made("p", "a", 99, 90), made("p", "b", 110, 110, status="optimal", **word)
    true = made("p", "c", 105, 95, **word)
    for runs in ([honest, liar, true], [liar, true, honest]):
        caplog.clear()
        evaluation = evaluate(runs)
        bound = evaluation.bound(honest)
        assert bound is not None
        assert (bound.lower_bound_ns, bound.certified) == (95, False)
        by_method = {run.setting.method: run.found for run in evaluation.runs}
        assert [by_method[name].status for name in "abc"] == ["feasible", "error", "feasible"]
        assert by_method["b"].lower_bound_ns == 95
        (told,) = caplog.messages
        assert "p: method b was wrong" in told
        assert "99 ns is under the flow bound 110" in told
    evaluation = evaluate([honest, liar])
    bound = evaluation.bound(honest)
    assert bound is not None
    assert (bound.lower_bound_ns, bound.certified) == (90, True)


def test_schedule_refutes_the_word_that_there_is_none(caplog: pytest.LogCaptureFixture) -> None:
    evaluation = evaluate([made("p", "a", 99, 90), made("p", "b", None, 90, status="infeasible")])
    assert [run.found.status for run in evaluation.runs] == ["feasible", "error"]
    assert "method b was wrong" in caplog.text


def test_word_that_falls_with_nothing_certified_leaves_no_bound() -> None:
    runs = [made("p", name, 99, 110, bound_by="flow", certified=False) for name in "ab"]
    evaluation = evaluate(runs)
    assert [evaluation.bound(run) for run in evaluation.runs] == [None, None]


def test_last_run_of_a_job_counts() -> None:
    evaluation = evaluate([made("p", "a", 120, 100), made("p", "a", 110, 100, fingerprint="newer")])
    assert [run.found.iteration_ns for run in evaluation.runs] == [110]


def test_settings_are_named_by_what_they_do_not_share() -> None:
    runs = [
        made("p", "a", 120, 100, time_limit=1.0),
        made("p", "a", 120, 100, time_limit=10.0),
        made("p", "a", 120, 100, time_limit=10.0, without=("x", "y")),
    ]
    assert list(evaluate(runs).settings.values()) == ["a, 1 s", "a, 10 s", "a, 10 s, without x y"]


def test_wall_limit_that_follows_from_the_time_limit_is_not_told() -> None:
    runs = [made("p", "a", 120, 100), made("p", "b", 120, 100, time_limit=10.0)]
    runs = [
        replace(run, setting=dataclasses.replace(run.setting, wall_limit=wall))
        for run, wall in zip(runs, (None, 130.0), strict=True)
    ]
    assert list(evaluate(runs).settings.values()) == ["a, no limit", "b, 10 s"]


def test_seeds_of_a_problem_count_as_their_median() -> None:
    runs = [made("p", "a", ns, 100, seed=seed) for seed, ns in enumerate((130, 110, None))]
    evaluation = evaluate(runs)
    (setting,) = evaluation.settings
    assert evaluation.times(setting) == {"p": 130}
    assert evaluation.gaps(setting) == {"p": 0.3}


def test_gap_table(evaluation: Evaluation) -> None:
    assert gap_table(evaluation).data.rows == (
        ("a", 4, 4, 1, pytest.approx(0.15), 0.5, 0.5, 2.0),
        ("b", 4, 3, 2, pytest.approx(0.15), math.inf, math.inf, 2.0),
    )
    assert gap_table(evaluation).table.rows[1][4:7] == ("15.00%", "no schedule", "no schedule")


def test_heat_map_has_every_problem_and_setting(evaluation: Evaluation) -> None:
    partial = evaluate([*evaluation.runs, made("t", "a", 100, 100)])
    assert heat_map(partial).data.rows == (
        ("p", 0.1, 0.0),
        ("q", 0.2, 0.0),
        ("r", 0.0, 0.3),
        ("s", 0.5, math.inf),
        ("t", 0.0, None),
    )


def test_performance_profile(evaluation: Evaluation) -> None:
    assert performance_profile(evaluation).data.rows == (
        ("a", 1.0, 0.5),
        ("a", 1.1, 0.75),
        ("a", 1.2, 1.0),
        ("b", 1.0, 0.5),
        ("b", 1.3, 0.75),
    )


def test_problems_that_not_all_settings_ran_on_are_not_compared(evaluation: Evaluation) -> None:
    partial = evaluate([*evaluation.runs, made("t", "a", 100, 100)])
    assert performance_profile(partial).data == performance_profile(evaluation).data
    assert win_loss(partial).data == win_loss(evaluation).data
    apart = evaluate([made("p", "a", 120, 100), made("q", "b", 120, 100)])
    assert [exhibit.name for exhibit in exhibits(apart)] == ["gaps", "heat-map", "cactus"]


def test_wins_and_losses(evaluation: Evaluation) -> None:
    ((first, second, won, tied, lost, p, fair),) = win_loss(evaluation).data.rows
    assert (first, second, won, tied, lost) == ("a", "b", 2, 0, 2)
    assert p == fair == 10 / 16  # ranks +1, +2, -3 and, for want of a schedule, -4


def test_cactus_counts_runs_close_to_the_bound() -> None:
    runs = [made("p", "a", 101, 100, solve_seconds=5.0), made("q", "a", 100, 100, solve_seconds=0.5)]
    runs += [made("r", "a", 102, 100), made("s", "a", None, 100)]
    assert cactus(evaluate(runs)).data.rows == (("a", 0.5, 1), ("a", 5.0, 2))


def test_anytime_curve_is_the_median_of_the_best_so_far() -> None:
    traces = [
        ((1.0, 140, 90), (4.0, 110, 100)),
        ((2.0, 130, None), (3.0, 135, 100)),
        ((1.0, None, 100),),
    ]
    runs = [
        made(problem, "a", 110 if problem == "p" else 130 if problem == "q" else None, 100, trace=trace)
        for problem, trace in zip("pqr", traces, strict=True)
    ]
    points = [row[1:] for row in anytime(evaluate(runs)).data.rows]
    assert all(gap == math.inf for seconds, gap in points if seconds < 2)
    assert all(gap == pytest.approx(0.4) for seconds, gap in points if 2 <= seconds < 4)
    assert all(gap == pytest.approx(0.3) for seconds, gap in points if seconds >= 4)
    assert len([1 for seconds, _ in points if seconds >= 4]) > 1


def test_time_against_budget_has_bounds_and_skips_what_has_no_schedule() -> None:
    runs = []
    for budget, (ns, bound) in {100: (None, 140), 200: (130, 120), 300: (100, 100)}.items():
        run = made(f"net/{budget}", "a", ns, bound)
        runs.append(replace(run, about=dataclasses.replace(run.about, budget_bytes=budget)))
    (exhibit,) = time_against_budget(evaluate(runs))
    assert exhibit.data.header == ("budget_bytes", "a (ns)", "lower bound (ns)")
    assert exhibit.data.rows == ((100, None, 140), (200, 130, 120), (300, 100, 100))
    other = [replace(run, about=dataclasses.replace(run.about, family_sha256="parts")) for run in runs[:1]]
    assert len(list(time_against_budget(evaluate([*runs, *other])))) == 1
    alike = [
        replace(
            run,
            about=dataclasses.replace(
                run.about,
                problem=f"other-{run.about.problem}",
                problem_sha256=f"other-{run.about.problem}",
                family_sha256="other",
            ),
        )
        for run in runs
    ]
    titles = [exhibit.title for exhibit in time_against_budget(evaluate([*runs, *alike]))]
    assert titles == [
        f"Time against budget: net, batch 8, K40, as {name}" for name in ("net/100", "other-net/100")
    ]


# --- drawing ------------------------------------------------------------------------------------------


def drawn(exhibit: Exhibit) -> Figure:
    figure = Figure(figsize=exhibit.size)
    exhibit.draw(figure)
    return figure


def told_in(figure: Figure) -> list[str]:
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def lines_of(figure: Figure) -> list[Line2D]:
    """The lines of data, of which each has its own label."""
    return [line for line in figure.axes[0].get_lines() if line.get_label() not in ("_leader", "_mark")]


@pytest.fixture
def many() -> Evaluation:
    """Nine settings, of which the first three are the worst."""
    return evaluate(
        [
            made(problem, name, 200 - 10 * i, 100, trace=((1.0, 300, 100), (2.0, 200 - 10 * i, 100)))
            for i, name in enumerate("abcdefghi")
            for problem in "pq"
        ]
    )


def test_pictures_of_lines_have_six_colours_and_markers_and_name_each_line_at_its_end(
    many: Evaluation,
) -> None:
    for exhibit in (performance_profile(many), cactus(many), anytime(many)):
        figure = drawn(exhibit)
        coloured = [line for line in lines_of(figure) if line.get_color() != GREY]
        assert len(lines_of(figure)) == 9
        assert [line.get_label() for line in coloured] == list("defghi"), exhibit.name
        assert len({line.get_color() for line in coloured}) == 6
        assert len({line.get_marker() for line in coloured}) == 6
        assert sorted(told_in(figure)) == ["3 others", *"defghi"]
        assert figure.axes[0].get_legend() is None
        assert (
            "In colour: the 6 settings with the least median gaps; in grey: the other 3." in exhibit.caption
        )


def test_names_at_the_ends_of_lines_do_not_overlap(many: Evaluation) -> None:
    figure = drawn(performance_profile(many))
    heights = sorted(text.xy[1] for text in figure.axes[0].texts if isinstance(text, Annotation))
    assert len(heights) == 7
    apart = min(above - below for below, above in pairwise(heights))
    points = apart * figure.axes[0].get_position().height * figure.get_figheight() * 72
    assert points > 11


def test_few_settings_are_all_in_colour(evaluation: Evaluation) -> None:
    exhibit = performance_profile(evaluation)
    assert sorted(told_in(drawn(exhibit))) == ["a", "b"]
    assert "grey" not in exhibit.caption


def data_of(line: Line2D) -> list[tuple[float, float]]:
    data: Any = line.get_xydata()
    return [(x, y) for x, y in data]


def test_counts_over_time_are_steps(evaluation: Evaluation) -> None:
    lines = lines_of(drawn(cactus(evaluation)))
    assert [line.get_drawstyle() for line in lines] == ["steps-post"] * 2
    for line, count in zip(lines, (1, 2), strict=True):
        counts = [y for _, y in data_of(line)]
        assert counts[0] == 0
        assert counts[-1] == count
    assert data_of(lines[0])[-1][0] == data_of(lines[1])[-1][0]


def test_profile_spreads_the_winners_that_crowd_at_one(evaluation: Evaluation) -> None:
    axes = drawn(performance_profile(evaluation)).axes[0]
    assert axes.get_xscale() == "symlog"
    assert axes.get_xlim()[0] == 0


def test_a_profile_begins_with_all_its_winners(many: Evaluation) -> None:
    for line in lines_of(drawn(performance_profile(many))):
        steps = data_of(line)
        assert [x for x, _ in steps].count(0) == 1
        assert sorted(steps) == steps


@pytest.mark.parametrize(("longest", "scale"), [(250, "linear"), (400, "log")])
def test_times_have_a_logarithmic_axis_where_they_differ_much(longest: int, scale: str) -> None:
    runs = []
    for budget, ns in {200: longest, 300: 100}.items():
        run = made(f"net/{budget}", "a", ns, 100)
        runs.append(replace(run, about=dataclasses.replace(run.about, budget_bytes=budget)))
    (exhibit,) = time_against_budget(evaluate(runs))
    assert drawn(exhibit).axes[0].get_yscale() == scale


def test_heat_map_says_what_its_cells_mean() -> None:
    runs = [made("p", "a", 100, 100), made("q", "a", 100_001, 100_000), made("r", "a", 150, 100)]
    exhibit = heat_map(evaluate([*runs, made("s", "a", None, 100)]))
    assert told_in(drawn(exhibit)) == ["0", "<0.1%", "50.0%", "x"]
    assert "(iteration - bound) / bound" in exhibit.caption
    assert "x: no schedule" in exhibit.caption


# --- files --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return swept(tmp_path_factory.mktemp("report"), SMALL.replace("vdnn-all-p", "vdnn-dyn") + BUDGETS)


@pytest.fixture(scope="module")
def folder(results: Path) -> Path:
    """A report; of its pictures, those as SVG are rendered."""
    place = results.parent / "report"
    with Results(results) as opened, pytest.MonkeyPatch.context() as patch:
        patch.setattr(FigureCanvasAgg, "print_png", lambda _, file, **__: file.write(b"\x89PNG"))
        write_report(opened, place, parquet=True)
    return place


NAMES = [
    "gaps",
    "heat-map",
    "performance-profile",
    "win-loss",
    "cactus",
    "time-against-budget-1",
]


def test_every_exhibit_is_a_picture_a_csv_and_latex(folder: Path) -> None:
    expected = {f"{name}.{kind}" for name in NAMES for kind in ("png", "svg", "csv", "tex")}
    assert {file.name for file in folder.iterdir()} == expected | {"index.html", "runs.csv", "runs.parquet"}
    for name in NAMES:
        assert (folder / f"{name}.png").read_bytes() == b"\x89PNG"
        assert b"</svg>" in (folder / f"{name}.svg").read_bytes()
        rows = list(csv.reader((folder / f"{name}.csv").read_text("utf-8").splitlines()))
        assert len(rows) > 1
        assert len({len(row) for row in rows}) == 1


def test_every_caption_states_what_it_rests_on(folder: Path) -> None:
    for name in NAMES:
        text = (folder / f"{name}.tex").read_text("utf-8")
        captions = re.findall(r"\\caption\{(.*)\}", text)
        assert len(captions) == 2
        for caption in captions:
            assert "predicted by simulation, not measured" in caption
            assert re.search(r"\. 24 runs, \d{4}-\d\d-\d\d: .* cores, .*; Python 3.*, pebbler \d", caption)
        assert ("easured" in text.replace("not measured", "")) == (name in ("gaps", "cactus"))


def test_latex_is_balanced_and_escaped(folder: Path) -> None:
    for name in NAMES:
        text = (folder / f"{name}.tex").read_text("utf-8")
        assert text.count("{") - text.count(r"\{") == text.count("}") - text.count(r"\}")
        assert re.findall(r"\\begin\{(\w+)\}", text) == ["figure", "table", "tabular"]
        assert not re.search(r"(?<!\\)[%#$]", text)
        body = text.split(r"\toprule")[1].split(r"\bottomrule")[0]
        columns = {len(re.findall(r"(?<!\\)&", line)) for line in body.splitlines() if line.endswith(r"\\")}
        assert len(columns) == 1


def test_all_runs_are_in_csv_and_parquet(results: Path, folder: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    with Results(results) as opened:
        runs = opened.runs()
    rows = list(csv.DictReader((folder / "runs.csv").read_text("utf-8").splitlines()))
    table = parquet.read_table(folder / "runs.parquet").to_pylist()
    assert len(rows) == len(table) == len(runs) == 24
    for run, row, entry in zip(runs, rows, table, strict=True):
        assert row["problem"] == entry["problem"] == run.about.problem
        assert entry["iteration_ns"] == run.found.iteration_ns
        assert row["iteration_ns"] == ("" if run.found.iteration_ns is None else str(run.found.iteration_ns))
        assert json.loads(entry["schedules"]) == list(run.found.schedules)


@pytest.mark.slow
def test_same_results_give_the_same_bytes(results: Path, tmp_path: Path) -> None:
    with Results(results) as opened:
        for name in ("once", "again"):
            write_report(opened, tmp_path / name)
    for file in (tmp_path / "again").iterdir():
        assert file.read_bytes() == (tmp_path / "once" / file.name).read_bytes(), file.name


class Links(HTMLParser):
    """Collects what a page would load, and its data."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.tags: list[str] = []
        self.data = ""
        self.in_data = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.in_data = ("id", "data") in attrs
        self.loaded += [value or "" for key, value in attrs if key in ("src", "href")]

    def handle_data(self, data: str) -> None:
        if self.in_data:
            self.data += data

    def handle_endtag(self, _: str) -> None:
        self.in_data = False


def parsed(page: str) -> Links:
    links = Links()
    links.feed(page)
    return links


def test_page_stands_alone_and_has_every_run_and_exhibit(results: Path, folder: Path) -> None:
    text = (folder / "index.html").read_text("utf-8")
    links = parsed(text)
    assert all(link.startswith(("#", "data:image/svg+xml;base64,")) for link in links.loaded)
    assert links.loaded
    assert not {"link", "iframe", "object"} & set(links.tags)
    assert not re.search(r"@import|url\(|fetch\(|XMLHttpRequest", text)
    assert "<!-- " not in text
    assert [name for name in NAMES if f'id="{name}"' in text] == NAMES
    data = json.loads(links.data)
    with Results(results) as opened:
        runs = opened.runs()
    assert [run["problem"] for run in data["runs"]] == [run.about.problem for run in runs]
    assert [run["iteration"] for run in data["runs"]] == [run.found.iteration_ns for run in runs]
    shown = {name for run in data["runs"] for name in run["schedules"]}
    assert shown == set(data["timelines"]) == {name for run in runs for name in run.found.schedules}
    for run in data["runs"]:
        for name in run["schedules"]:
            line = data["timelines"][name]
            assert line["makespan"] * line["rounds"] == run["iteration"]
            assert max(end for *_, end in line["operations"]) == line["makespan"]
            assert max(map(sum, zip(*line["memory"][1:], strict=True))) + line["resident"] <= line["budget"]


def test_page_says_which_timelines_are_left_out(results: Path, tmp_path: Path) -> None:
    alone = tmp_path / "moved.sqlite"
    alone.write_bytes(results.read_bytes())
    with Results(results) as beside, Results(alone) as apart:
        evaluation = evaluate(beside.runs())
        short, none = (page(evaluation, [], "", opened, most_operations=20) for opened in (beside, apart))
    lines = json.loads(parsed(short).data)["timelines"].values()
    assert 0 < sum(len(line["operations"]) for line in lines) <= 20
    assert re.search(r"the timelines of the \d+ longest schedules are left out; pebbler trace shows", short)
    assert json.loads(parsed(none).data)["timelines"] == {}
    assert re.search(r"\d+ schedules do not lie beside the results", none)


def test_page_is_safe_from_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FigureCanvasAgg, "print_png", lambda _, file, **__: file.write(b"\x89PNG"))
    odd = "</script><b>&$\\frac{ $"  # half a formula, too, which pictures show as it is
    with Results(tmp_path / "odd.sqlite", write=True) as results:
        results.add(made(odd, "a", 120, 100))
        write_report(results, tmp_path / "odd")
    text = (tmp_path / "odd" / "index.html").read_text("utf-8")
    assert "</script><b>" not in text
    assert json.loads(parsed(text).data)["runs"][0]["problem"] == odd


@pytest.mark.usefixtures("unrendered")
def test_report_shows_titles_and_time_limits(tmp_path: Path) -> None:
    runs = [made("p", "a", 120, 100, time_limit=5.0), made("p", "b", 120, 100, time_limit=60.0)]
    for name, titles, shown in (
        ("none", [], "2 settings on 1 problem"),
        ("two", ["A < B", "more", "more"], "A &lt; B; more"),
    ):
        with Results(tmp_path / f"{name}.sqlite", write=True) as results:
            for title in titles:
                results.add_title(title)
            for run in runs:
                results.add(run)
            write_report(results, tmp_path / name)
        text = (tmp_path / name / "index.html").read_text("utf-8")
        assert f"<h1>{shown}</h1>" in text
        assert f"<title>Pebbler: {shown}</title>" in text
        assert "Time limits of a run: 5 s, 60 s." in text
        assert "Time limits of a run: 5 s, 60 s." in (tmp_path / name / "gaps.tex").read_text("utf-8")


def test_report_of_no_runs_is_refused(tmp_path: Path) -> None:
    with (
        Results(tmp_path / "empty.sqlite", write=True) as results,
        pytest.raises(PebblerError, match="no runs to report"),
    ):
        write_report(results, tmp_path / "report")
    assert not (tmp_path / "report").exists()
