"""The public face: what a user of the Python API touches, and what is said of wrong arguments."""

from __future__ import annotations

import inspect
import pkgutil
import re
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import pebbler
from pebbler import Instance
from pebbler.heuristics.methods import Method, temporary_methods

Toys = Callable[..., None]


OLD = {
    "build": "build_program",
    "check_schedule": "check",
    "evict": "evict_blocks",
    "find_scheme": "find_eviction",
    "units": "layer_steps",
}


# --- names --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in dir(pebbler) if name != "__version__"])
def test_every_public_name_has_a_docstring_of_its_own(name: str) -> None:
    public = getattr(pebbler, name)
    told = inspect.getdoc(public) or ""
    inherited = [inspect.getdoc(base) for base in public.__mro__[1:]] if inspect.isclass(public) else []
    assert told not in inherited
    assert not told.startswith(f"{name}(")  # what a dataclass says where nobody says anything
    assert len(told.splitlines()[0]) > 15


@pytest.mark.parametrize("name", [name for name in dir(pebbler) if name != "__version__"])
def test_methods_and_properties_of_public_classes_have_docstrings(name: str) -> None:
    public = getattr(pebbler, name)
    if inspect.isclass(public):
        own = {key: value for key, value in vars(public).items() if not key.startswith("_")}
        for key, value in own.items():
            if inspect.isfunction(value) or isinstance(value, property):
                assert inspect.getdoc(value), f"{name}.{key}"


def test_no_public_name_is_that_of_a_module_of_the_package() -> None:
    modules = {module.name for module in pkgutil.iter_modules(pebbler.__path__)}
    assert modules >= {"solver", "instances"}
    assert not modules & set(dir(pebbler))


@pytest.mark.parametrize("old", OLD)
def test_an_old_name_works_with_a_warning_that_names_the_new_one(old: str) -> None:
    with pytest.warns(DeprecationWarning, match=rf"pebbler\.{old} is called pebbler\.{OLD[old]} now") as told:
        found = getattr(pebbler, old)
    assert found is getattr(pebbler, OLD[old])
    assert told[0].filename == __file__
    assert old not in dir(pebbler)


def test_a_star_import_gives_the_public_names() -> None:
    namespace: dict[str, object] = {}
    exec("from pebbler import *", namespace)
    assert set(dir(pebbler)) - {"__version__"} == namespace.keys() - {"__builtins__"}


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'solves'"):
        _ = pebbler.solves  # type: ignore[attr-defined]


# --- wrong arguments ----------------------------------------------------------------------------------

WRONG_LIMITS: list[tuple[dict[str, Any], str]] = [
    ({"memory": "page"}, "memory is 'page'; give 'contiguous' or 'paged'"),
    ({"memory": None}, "memory is None; give 'contiguous' or 'paged'"),
    ({"workers": 0}, "workers is 0; give a whole number from 1 to 1024"),
    ({"workers": 1.5}, "workers is 1.5; give a whole number"),
    ({"workers": True}, "workers is True; give a whole number"),
    ({"time_limit": "10s"}, "time_limit is '10s'; give seconds as a number, such as 10, or None"),
    ({"time_limit": -1}, "time_limit is -1; give seconds"),
    ({"time_limit": float("nan")}, "time_limit is nan; give seconds"),
    ({"time_limit": float("inf")}, "time_limit is inf; give seconds"),
    ({"seed": -1}, "seed is -1; give a whole number from 0 to"),
    ({"seed": "x"}, "seed is 'x'; give a whole number from 0 to"),
]


def refused(call: Callable[[], object], told: str) -> None:
    with pytest.raises(pebbler.PebblerError) as error:
        call()
    assert told in str(error.value)
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize(("wrong", "told"), WRONG_LIMITS)
def test_wrong_limits_are_refused_wherever_they_are_given(
    chain: Instance, wrong: dict[str, Any], told: str
) -> None:
    buffer = pebbler.Buffer("a", 0, 1, 1)
    workload = pebbler.Workload("lenet", 4, "k40")
    refused(lambda: pebbler.solve(chain, "modnn", **wrong), told)
    refused(lambda: pebbler.compare(chain, ["modnn"], **wrong), told)
    refused(lambda: pebbler.compare_auto(workload, "1GiB", ["modnn"], **wrong), told)
    refused(lambda: pebbler.frontier(chain, "modnn", **wrong), told)
    refused(lambda: pebbler.largest_batch(workload, 2**30, "modnn", **wrong), told)
    refused(lambda: pebbler.fits(workload, 2**30, **wrong), told)
    if "memory" in wrong:
        refused(lambda: pebbler.best_bound(chain, **wrong), "memory is")
    else:
        refused(lambda: pebbler.pack([buffer], **wrong), told)
        refused(lambda: pebbler.refine_bound(chain, **({"time_limit": 1.0} | wrong)), told.split(";")[0])


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda i: pebbler.solve(i, ["flow"]), "a method is ['flow']; give its name"),
        (lambda i: pebbler.solve(i, "flwo"), "there is no method 'flwo'; did you mean flow"),
        (lambda i: pebbler.solve(i, "modnn", warm_start="a.json"), "warm_start is 'a.json'; give a schedule"),
        (lambda i: pebbler.solve(i, "modnn", bound=5), "bound is 5; give what best_bound"),
        (lambda i: pebbler.solve(i, "modnn", without="ties"), "without is 'ties'; give a list of names"),
        (lambda i: pebbler.solve(i, "modnn", solver=3), "linear solver 3 is not available"),
        (lambda i: pebbler.solve(i, "modnn", on_better=3), "on_better is 3; give a function"),
        (lambda i: pebbler.compare(i, "flow"), "methods is 'flow'; give a list of names, such as ['flow']"),
        (lambda i: pebbler.compare(i, 5), "methods is 5; give a list of names"),
        (lambda i: pebbler.compare(i, [i]), "a name in methods is an Instance; give texts"),
        (lambda i: pebbler.compare([i, 3]), "instance is 3; make an instance"),
        (lambda i: pebbler.compare_auto(i, "1GiB"), "workload is an Instance; make one with Workload("),
        (lambda i: pebbler.refine_bound(i, None), "time_limit is None; give seconds as a number"),
        (lambda i: pebbler.timeline(i, None), "schedule is None; give a schedule; result.schedule is None"),
        (lambda i: pebbler.trace(i, None), "schedule is None; give a schedule"),
        (lambda i: pebbler.simulate(i, None), "schedule is None; give a schedule"),
        (lambda i: pebbler.write_schedule(i, "a"), "schedule is an Instance; give a schedule"),
        (lambda i: pebbler.check_certificate(i, None), "certificate is None; give a certificate"),
        (
            lambda i: pebbler.ProgramBuilder(i, memory="page"),
            "memory is 'page'; give 'contiguous', 'paged' or",
        ),
        (lambda i: pebbler.check(i, "a.json"), "a str was given where a Schedule is needed"),
        (lambda i: pebbler.frontier(i, "modnn", points=0), "points is 0; give a whole number from 1 on"),
        (lambda i: pebbler.frontier(i, "modnn", spacing="wide"), "spacing is 'wide'; give 'adaptive' or"),
        (lambda i: pebbler.frontier(i, "modnn", folder=3), "folder is 3; give a path"),
    ],
)
def test_wrong_arguments_beside_an_instance_are_refused_in_one_sentence(
    chain: Instance, call: Callable[[Any], object], told: str
) -> None:
    refused(lambda: call(chain), told)


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: pebbler.solve("vgg16", "flow"), "instance is 'vgg16'; make an instance with Workload("),
        (lambda: pebbler.compare("vgg16"), "instance is 'vgg16'; make an instance"),
        (
            lambda: pebbler.compare(pebbler.Workload("lenet", 4, "k40")),
            "instance is a Workload; make an instance with Workload(...).instance(budget)",
        ),
        (lambda: pebbler.best_bound(None), "instance is None; make an instance"),
        (lambda: pebbler.frontier("vgg16", "modnn"), "instance is 'vgg16'; make an instance"),
        (lambda: pebbler.pack("buffers.csv"), "buffers is 'buffers.csv'; give a list of Buffer"),
        (lambda: pebbler.pack([1]), "a buffer is 1; give a list of Buffer"),
        (lambda: pebbler.Workload(5, 4, "k40"), "network is 5; give a name, such as 'vgg16', or a Network"),
        (lambda: pebbler.Workload("lenet", "4", "k40"), "batch is '4'; give a whole number from 1 on"),
        (lambda: pebbler.Workload("lenet", 4, None), "device is None; give a name, such as 'k40'"),
        (lambda: pebbler.Workload("lenet", 4, "k40", graph="x"), "graph is 'x'; give 'executable' or"),
        (lambda: pebbler.Workload("lenet", 4, "k40", engines="x"), "engines is 'x'; give 'duplex' or"),
        (lambda: pebbler.Workload("lenet", 4, "k40").instance(1e9), "budget is 1000000000.0; give whole"),
        (lambda: pebbler.Workload("lenet", 4, "k40").instance("much"), "'much' is not a budget"),
        (lambda: pebbler.Workload("lenet", 4, "k40").instance("1GiB", "2"), "a sub-batch of '2' is not"),
        (lambda: pebbler.ProgramBuilder("vgg16"), "instance is 'vgg16'; make an instance"),
        (lambda: pebbler.write_certificate(None, "a"), "certificate is None; give a certificate"),
        (lambda: pebbler.write_instance(None, "a"), "instance is None; make an instance"),
        (lambda: pebbler.timeline(None, None), "instance is None; make an instance"),
        (lambda: pebbler.find_network(["lenet"]), "a network is ['lenet']; give its name"),
        (lambda: pebbler.find_device(5), "a device is 5; give its name"),
        (lambda: pebbler.find_suite(5), "a suite is 5; give its name"),
        (lambda: pebbler.find_method(None), "a method is None; give its name"),
        (lambda: pebbler.register("", "what", "who"), "the name of a method is ''; give one line of text"),
        (lambda: pebbler.register("n", "a\nb", "who"), "the summary of a method is 'a\\nb'; give one line"),
        (lambda: pebbler.register("n", "a", "who", shown="x"), "shown is 'x'; give 'always', 'auto' or"),
    ],
)
def test_wrong_arguments_are_refused_in_one_sentence(call: Callable[[], object], told: str) -> None:
    refused(call, told)


INNER = {"evict_blocks", "find_eviction"}
"""What heuristics call for every task; they take what the builder gives."""


@pytest.fixture(scope="module")
def right() -> dict[str, Any]:
    """An argument for every name that public functions require."""
    workload = pebbler.Workload("lenet", 4, "k40")
    instance = workload.instance("1GiB")
    return {
        "workload": workload,
        "instance": instance,
        "method": "modnn",
        "name": "lenet",
        "gpus": 2,
        "budget": "1GiB",
        "budget_bytes": 2**30,
        "size": 2**21,
        "link": "pcie4",
        "engines": "single",
        "time_limit": 1,
        "schedule": pebbler.solve(instance, "modnn").schedule,
        "certificate": pebbler.best_bound(instance).certificate,
        "cluster": pebbler.several_gpus(workload, 2),
        "comparison": pebbler.compare(instance, ["modnn"]),
    }


@pytest.mark.parametrize(
    "name", [n for n in dir(pebbler) if inspect.isfunction(getattr(pebbler, n)) and n not in INNER]
)
def test_an_argument_of_another_kind_is_refused_by_every_public_function(
    name: str, right: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    function = getattr(pebbler, name)
    parameters = inspect.signature(function).parameters.values()
    required = [p.name for p in parameters if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
    for place, wrong in product(required, (None, object(), 1j)):
        arguments = {key: right.get(key, key) for key in required} | {place: wrong}
        with pytest.raises(pebbler.PebblerError) as error:
            function(**arguments)
        assert len(str(error.value).splitlines()) == 1


# --- methods of one's own -----------------------------------------------------------------------------


def test_registering_again_replaces_what_the_same_module_has_registered(
    chain: Instance, toys: Toys, keep: Method
) -> None:
    toys(other=keep)

    @pebbler.register("mine", "refuses", "a test")
    def first(instance: Instance, limits: pebbler.Limits) -> pebbler.Answer:
        raise pebbler.Refusal(f"not yet: {instance.name} in {limits.memory} memory")

    assert not pebbler.solve(chain, "mine").is_feasible()

    @pebbler.register("mine", "keeps all", "a test")
    def second(instance: Instance, limits: pebbler.Limits) -> pebbler.Answer:
        return keep(instance, limits)

    assert pebbler.solve(chain, "mine").is_feasible()
    assert [info.summary for info in pebbler.list_methods() if info.name == "mine"] == ["keeps all"]


def test_a_name_of_another_module_is_not_taken_away(keep: Method) -> None:
    with (
        temporary_methods(),
        pytest.raises(pebbler.PebblerError, match="method 'modnn' is registered already"),
    ):
        pebbler.register("modnn", "mine", "a test")(keep)


# --- what is shown ------------------------------------------------------------------------------------


class _Cells(HTMLParser):
    """Texts of the cells of tables; every tag must be closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.cells: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: object) -> None:  # noqa: ARG002
        self.open.append(tag)
        if tag in ("td", "th"):
            self.cells.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1] in ("td", "th"):
            self.cells[-1] += data


def test_what_is_printed_is_a_few_lines_and_a_notebook_shows_the_same(
    tight: Instance, toys: Toys, keep: Method, swap: Method
) -> None:
    toys(keep=keep, swap=swap)
    comparison = pebbler.compare(tight)
    result = pebbler.solve(tight, "swap")
    assert result.schedule is not None
    network = pebbler.find_network("resnet50")
    packing = pebbler.pack([pebbler.Buffer("a", 0, 1, 5)])
    shown = {
        "instance": (tight, ("chain-b4", "both ways at once")),
        "comparison": (comparison, ("swap", "feasible", "10.500 ms")),
        "result": (result, ("swap", "feasible (done)")),
        "schedule": (result.schedule, ("swap", "10.500 ms")),
        "network": (network, ("resnet50",)),
        "packing": (packing, ("optimal", "5 (5 B)")),
    }
    for thing, words in shown.values():
        printed, cells = str(thing), _Cells(thing._repr_html_()).cells
        assert len(printed.splitlines()) <= 13
        for word in words:
            assert word in printed
            assert word in cells


def test_a_comparison_shows_what_failed_and_the_bound(tight: Instance, toys: Toys, keep: Method) -> None:
    toys(keep=keep)
    comparison = pebbler.compare(tight)
    assert comparison.best is None
    for text in (str(comparison), comparison._repr_html_()):
        assert "no schedule: " in text
        assert "lower bound" in text
    toys(keep=keep)
    assert "in exact arithmetic" in comparison._repr_html_()


def test_names_are_escaped_for_a_notebook(chain: Instance) -> None:
    from msgspec.structs import replace

    assert "<b>" not in replace(chain, name="<b>")._repr_html_()


def test_the_best_row_is_the_shortest(tight: Instance, toys: Toys, keep: Method, swap: Method) -> None:
    toys(keep=keep, swap=swap)
    best = pebbler.compare(tight).best
    assert best is not None
    assert best.method == "swap"


def test_the_summary_of_a_result_is_what_it_prints(chain: Instance, toys: Toys, keep: Method) -> None:
    toys(keep=keep)
    result = pebbler.solve(chain, "keep")
    assert result.is_feasible()
    assert result.summary() == str(result)


# --- functions of rooms -------------------------------------------------------------------------------


def test_a_frontier_needs_no_folder_and_fills_one_that_is_given(chain: Instance, tmp_path: Path) -> None:
    alone = pebbler.frontier(chain, "modnn", points=2)
    kept = pebbler.frontier(chain, "modnn", points=2, folder=tmp_path / "frontier")
    assert alone.points == kept.points
    assert len(alone.points) == 2
    assert (tmp_path / "frontier" / "chain-b4.modnn.frontier.json").exists()
    assert "budget" in _Cells(alone._repr_html_()).cells


def test_the_largest_batch_shows_what_was_tried() -> None:
    found = pebbler.largest_batch(pebbler.Workload(mine(), 1, "k40"), 16 * 2**20, "vdnn-all-m")
    cells = _Cells(found._repr_html_()).cells
    assert found.largest_batch is not None
    assert {"batch", "excluded by", str(found.largest_batch)} <= set(cells)
    assert f"a batch of {found.largest_batch}" in found._repr_html_()


def test_functions_stay_functions_when_the_rooms_are_imported() -> None:
    code = (
        "import pebbler.solver.packing.pack, pebbler.benchmark.comparison.frontier, pebbler.validate.check\n"
        "import pebbler.benchmark.comparison.compare, pebbler.solver.solve, pebbler.validate.simulate\n"
        "import pebbler.benchmark.comparison.largest_batch, pebbler.benchmark.pictures.trace\n"
        "names = 'pack frontier fits check compare solve simulate largest_batch trace'.split()\n"
        "print(all(type(getattr(pebbler, name)).__name__ == 'function' for name in names))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


# --- networks of one's own ----------------------------------------------------------------------------


def mine(name: str = "mine") -> pebbler.Network:
    net = pebbler.NetworkBuilder(name)
    x = net.input(3, 16, 16)
    for i in range(3):
        x = net.conv(f"conv{i}", x, 32, 3, pad=1, relu=True)
    net.softmax("loss", net.fc("fc", x, 10))
    return net.finish()


def test_a_workload_takes_a_network() -> None:
    workload = pebbler.Workload(mine(), 8, "k40")
    instance = workload.instance("1GiB", sub_batch=4, rounds=2)
    assert instance.name == "mine-b4"
    assert instance.made_from.network == workload.name == "mine"
    assert [layer.name for layer in instance.named_layers][:2] == ["conv0", "relu conv0"]
    comparison = pebbler.compare(instance, ["modnn", "vdnn-dyn"])
    assert {row.status for row in comparison.rows} <= {pebbler.Status.FEASIBLE, pebbler.Status.OPTIMAL}


def test_a_network_gives_the_instance_that_its_name_gives() -> None:
    by_name = pebbler.Workload("lenet", 8, "k40").instance("1GiB")
    assert pebbler.Workload(pebbler.find_network("lenet"), 8, "k40").instance("1GiB") == by_name


def test_methods_choose_the_sub_batch_of_a_network() -> None:
    workload = pebbler.Workload(mine(), 8, "k40")
    comparison = pebbler.compare_auto(workload, "1.5xMmin", ["modnn", "vdnn-all-m"], time_limit=5)
    assert all(row.figures is not None for row in comparison.rows)
    cluster = pebbler.several_gpus(workload, 2)
    assert pebbler.cluster_instances(workload, cluster, "1GiB")[0].gpus == 2


@pytest.mark.parametrize(
    ("add", "told"),
    [
        (
            lambda net: net.conv("c", "x", "64", 3),
            "layer 'c': channels is '64'; give a whole number",
        ),
        (lambda net: net.conv("c", "x", 64, 0), "layer 'c': kernel is 0; give a whole number"),
        (lambda net: net.conv("c", "x", 64, 3, stride=0), "layer 'c': stride is 0; give a whole number"),
        (
            lambda net: net.conv("c", "x", 64, 3, pad=-1),
            "layer 'c': pad is -1; give a whole number from 0",
        ),
        (lambda net: net.conv("c", "x", 64, 3, groups=0), "layer 'c': groups is 0; give a whole number"),
        (lambda net: net.conv("c", ["x"], 64, 3), "there is no layer ['x'] to read; define it first"),
        (lambda net: net.conv(5, "x", 64, 3), "a layer has the name 5; give one line of text"),
        (lambda net: net.fc("f", "x", 0), "layer 'f': outputs is 0; give a whole number"),
        (lambda net: net.maxpool("p", "x", 2, stride=0), "layer 'p': stride is 0; give a whole number"),
        (lambda net: net.input(0, 1, 1, "y"), "layer 'y': channels is 0; give a whole number"),
        (
            lambda net: net.attention("a", "x", heads=0),
            "layer 'a': heads is 0; give a whole number",
        ),
    ],
)
def test_layers_that_make_no_sense_are_refused(
    add: Callable[[pebbler.NetworkBuilder], object], told: str
) -> None:
    net = pebbler.NetworkBuilder("mine")
    net.input(3, 8, 8, name="x")
    refused(lambda: add(net), told)


def test_a_network_without_a_printable_name_is_refused() -> None:
    refused(lambda: pebbler.Workload(mine("a\nb"), 8, "k40"), "the network's name is 'a\\nb'; give one line")


# --- its page -----------------------------------------------------------------------------------------


@pytest.fixture
def page() -> str:
    return (Path(__file__).parents[1] / "docs" / "python.md").read_text(encoding="utf-8")


def test_the_page_has_a_row_for_every_public_name_and_for_no_other(page: str) -> None:
    rows = re.findall(r"^\| `(\w+)` \| \S", page, re.MULTILINE)
    assert len(rows) == len(set(rows))
    assert {*rows, "__version__"} == set(dir(pebbler))


def test_the_page_has_five_programs_of_ten_lines(page: str) -> None:
    programs = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    lines = [[line for line in program.splitlines() if line.strip()] for program in programs]
    assert len(programs) == 5
    assert max(map(len, lines)) <= 10


def test_the_rule_on_names_lists_every_old_one() -> None:
    assert OLD == pebbler.RENAMED
    formats = (Path(__file__).parents[1] / "docs" / "formats.md").read_text(encoding="utf-8")
    for old, new in OLD.items():
        assert f"| `pebbler.{old}` | `pebbler.{new}`" in formats
