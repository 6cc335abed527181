"""Policies from files: tags, and the forward graphs of torch, as schedules."""

from __future__ import annotations

from pathlib import Path

import pytest

from pebbler import compare
from pebbler.benchmark.sweeps.jobs import Job, Setting
from pebbler.benchmark.sweeps.problems import FileProblem, about
from pebbler.heuristics.methods import Limits, Refusal, find_method, list_methods
from pebbler.heuristics.production.exports import torch_tags
from pebbler.heuristics.production.given import policy_sha256
from pebbler.heuristics.recomputation.plan import NOTHING_AGAIN
from pebbler.heuristics.recomputation.rules import planned
from pebbler.instances.errors import PebblerError
from pebbler.instances.files import encode, sha256_of
from pebbler.instances.instance import Instance
from pebbler.instances.memory import with_budget

from ...instances.foreign.test_fx import JOINT, read
from .steps import MIB, names_of, solved, traced, transformer

FORWARD = """\
class GraphModule(torch.nn.Module):
    def forward(self, primals_1: "bf16[256, 64][64, 1]cuda:0", primals_2: "bf16[1024, 64][64, 1]cuda:0"):
        # File: model.py:3 in forward, code: return torch.relu(x @ w.T).float().std()
        t: "bf16[64, 256][1, 64]cuda:0" = torch.ops.aten.t.default(primals_1);  primals_1 = None
        mm: "bf16[1024, 256][256, 1]cuda:0" = torch.ops.aten.mm.default(primals_2, t);  t = None
        relu: "bf16[1024, 256][256, 1]cuda:0" = torch.ops.aten.relu.default(mm);  mm = None
        view: "bf16[262144][1]cuda:0" = torch.ops.aten.view.default(mm, [262144])
        gt: "b8[1024, 256][256, 1]cuda:0" = torch.ops.aten.gt.Scalar(relu, 0)
        var_mean = torch.ops.aten.var_mean.correction(relu, [0, 1], correction = 1);  relu = None
        getitem: "f32[][]cuda:0" = var_mean[0]
        getitem_1: "f32[][]cuda:0" = var_mean[1];  var_mean = None
        return (getitem, primals_2, SAVED)
"""
BACKWARD = """\
class GraphModule(torch.nn.Module):
    def forward(self, primals_2: "bf16[1024, 64][64, 1]cuda:0", tangents_1: "f32[][]cuda:0"):
        return (None, None)
"""


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def joint(tmp_path: Path) -> Instance:
    return with_budget(planned(read(tmp_path)), 1 << 30)


def followed(instance: Instance, text: str) -> list[str]:
    """Tasks that run again when a file is followed, as in a valid schedule."""
    Path("policy.txt").write_text(text)
    return names_of(instance, solved("policy:policy.txt", instance), "run")


@pytest.mark.parametrize(
    ("saved", "again"),
    [
        ("relu, getitem_1", []),
        ("mm, getitem_1", ["FP(relu relu)"]),
        ("view, getitem_1", ["FP(relu relu)"]),  # a view has the memory of what it views
        ("getitem_1", ["FP(mm mm)", "FP(relu relu)"]),
        ("gt, getitem_1", []),  # what is made ahead of the backward pass is made of what is saved instead
    ],
)
def test_what_torch_saves_is_kept_and_all_else_runs_again(
    joint: Instance, saved: str, again: list[str]
) -> None:
    graphs = "\n".join((JOINT, FORWARD.replace("SAVED", saved), BACKWARD))
    assert followed(joint, graphs) == again
    begin = "I1126 16:26:04.995000 12227 torch/graph_compile.py:1655] [0/0] [__aot_graphs] "
    logged = "".join(f"{begin}{line}\n" for line in FORWARD.replace("SAVED", saved).splitlines())
    assert followed(joint, logged) == again


def test_what_runs_again_runs_once_and_stays_until_all_that_needs_it_has_run() -> None:
    """As in a backward pass that is compiled: the product is not made anew for the second of its readers."""
    forward = [
        ("p", "mm", "x", "m"),
        ("r", "relu", "m", "r"),
        ("g", "gelu", "m", "g"),
        ("s", "add", "r g", "y"),
    ]
    instance = traced(forward, [("s", ""), ("g", "g"), ("r", "r"), ("p", "x")], ns={"p": 100})
    text = """\
class GraphModule(torch.nn.Module):
    def forward(self, primals_1: "f32[4][1]cpu"):
        y: "f32[4][1]cpu" = torch.ops.aten.exp.default(primals_1)
        return (y,)
"""
    assert followed(instance, text) == ["FP(p)", "FP(g)", "FP(r)"]


def test_tags_that_a_schedule_gives_are_followed_to_the_same_tags() -> None:
    instance = with_budget(transformer(6, copy=15), 110 * MIB)
    for method in ("torchtitan-budget", "torch-compile", "checkpoint-layers", "transformers-offload"):
        instance = with_budget(instance, (110 if method == "torchtitan-budget" else 400) * MIB)
        lines = torch_tags(instance, solved(method, instance, "paged")).lines
        Path("tags.txt").write_text("\n".join(lines) + "\n\n")
        schedule = solved("policy:tags.txt", with_budget(instance, 400 * MIB), "paged")
        assert torch_tags(instance, schedule).lines == lines


def test_a_file_is_a_method_in_comparisons_and_sweeps(joint: Instance) -> None:
    Path("forward.txt").write_text(FORWARD.replace("SAVED", "mm, getitem_1"))
    info = find_method("policy:forward.txt")
    assert (info.name, info.shown, info.transform) == ("policy:forward.txt", "named", planned)
    assert "policy:forward.txt" not in {info.name for info in list_methods()}
    told = str(compare(joint, ["policy:forward.txt", "torch-compile"]))
    assert "policy:forward.txt  feasible" in told
    assert policy_sha256("policy:forward.txt") == sha256_of("forward.txt")
    assert policy_sha256("policy:missing") is None
    assert policy_sha256("modnn") is None
    assert find_method("policy:missing").name == "policy:missing"
    with pytest.raises(PebblerError, match="'policy:' names no file; give one"):
        find_method("policy:")


def test_a_changed_file_is_another_run(joint: Instance) -> None:
    setting = Setting(method="policy:tags.txt", memory_model="contiguous")
    problem = FileProblem("joint", encode(joint))

    def fingerprint(text: str) -> str:
        Path("tags.txt").write_text(text)
        return Job(problem, about(problem, problem.instances()), setting).fingerprint

    assert fingerprint("mm MUST_SAVE") != fingerprint("relu MUST_SAVE")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("mm MUST_STAY", "line 1: 'mm MUST_STAY' is no tensor with one of MUST_SAVE, MUST_CPU_OFFLOAD"),
        ("\nMUST_SAVE", "line 2: 'MUST_SAVE' is no tensor"),
        ("nowhere MUST_SAVE", "line 1: small-joint-recompute has no tensor 'nowhere'"),
        ("getitem_1 MUST_RECOMPUTE", "'getitem_1' of small-joint-recompute cannot be computed again"),
        (
            FORWARD.replace("SAVED", "view").replace("view.default", "exp.default"),
            "saves 'view', and small-j",
        ),
        (FORWARD.replace("SAVED", "mm]"), "no Python, line"),
        (FORWARD + FORWARD, "has 2 forward graphs; give a file with one"),
        (BACKWARD, "has 0 forward graphs; give a file with one"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(joint: Instance, text: str, told: str) -> None:
    with pytest.raises(Refusal, match=told):
        followed(joint, text)


def test_what_is_no_text_or_not_there_is_refused(joint: Instance) -> None:
    Path("bytes").write_bytes(b"\xff\xfe")
    for file, told in (("bytes", "bytes is neither UTF-8 nor"), ("gone", "gone")):
        with pytest.raises(Refusal, match=told):
            find_method(f"policy:{file}").call(joint, Limits())


def test_without_second_runs_nothing_can_be_dropped(tmp_path: Path) -> None:
    Path("forward.txt").write_text(FORWARD.replace("SAVED", "mm"))
    with pytest.raises(Refusal) as refused:
        find_method("policy:forward.txt").call(with_budget(read(tmp_path), 1 << 30), Limits())
    assert str(refused.value) == NOTHING_AGAIN
