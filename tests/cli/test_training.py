"""Steps of torch at the command line."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from pebbler.cli.main import main

from ..extras import needs_torch

torch = needs_torch()

import pebbler.torch  # noqa: E402
from pebbler.instances.files import read_instance  # noqa: E402
from pebbler.instances.profile import read_profile  # noqa: E402

Output = pytest.CaptureFixture[str]

STEP = """
import torch
from torch import nn


def make_step(batch):
    model = nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def step(x, classes):
        return nn.functional.cross_entropy(model(x), classes)

    return model, step, (torch.randn(batch, 32), torch.randint(4, (batch,))), optimizer


def accumulate(batch):
    model, step, inputs, optimizer = make_step(batch)

    def whole(x, classes):
        loss = 0
        for part, labels in zip(x.split(batch // 2), classes.split(batch // 2)):
            one = step(part, labels) / 2
            one.backward()
            loss = loss + one.detach()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        return loss

    return model, whole, inputs, optimizer


def forward_only(batch):
    return make_step(batch)[:3]


def never_the_same(batch):
    model, step, inputs, optimizer = make_step(batch)
    never_the_same.factor = getattr(never_the_same, "factor", 0.0) + 1.0
    factor = never_the_same.factor
    return model, lambda x, classes: step(x * factor, classes), inputs, optimizer
"""

RUN = ("run", "--torch", "a_step:make_step", "--batch", "16", "--budget", "1.2xMmin", "--method", "modnn")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run every command in a folder with a step."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "a_step", raising=False)
    (tmp_path / "a_step.py").write_text(STEP)
    return tmp_path


def test_run_takes_steps_and_compares_them_with_eager_torch(capsys: Output) -> None:
    assert main([*RUN, "--clip", "0.5", "--save", "plan", "--picture", "p.png", "--trace", "t.json"]) == 0
    out = capsys.readouterr().out
    assert "have the same bits as eager torch's" in out
    assert out.splitlines()[0].split() == ["operation", "predicted", "measured", "ratio"]
    for word in ("eager torch: ", "eager peak: ", "on compute: ", "on h2d: ", " others "):
        assert word in out
    assert Path("p.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads(Path("t.json").read_bytes())["traceEvents"]
    plan = pebbler.torch.load("plan")
    assert plan.schedule.peak_bytes <= plan.instance.budget_bytes < plan.record.eager_peak_bytes


def test_run_prints_json(capsys: Output) -> None:
    assert main([*RUN, "--json", "--operations", "--repeat", "2"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["backend"] == "torch"
    assert found["identical_to_unbudgeted"] is True
    assert len(found["executions_ns"]) == 2
    runs = sum(one["end_ns"] - one["start_ns"] for one in found["operations"] if "offload" not in one["name"])
    assert 0 < found["streams_ns"]["compute"]["measured"] <= runs
    assert main([*RUN, "--json", "--no-reference", "--repeat", "1"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["identical_to_unbudgeted"], found["unbudgeted_ns"]) == (None, None)


@pytest.mark.parametrize(
    ("function", "options"),
    [
        ("accumulate", ()),
        ("forward_only", ("--memory", "paged", "--budget", "60MiB")),
        ("make_step", ("--recompute", "--method", "memonger-rule", "--budget", "100%")),
    ],
)
def test_run_takes_other_steps(capsys: Output, function: str, options: tuple[str, ...]) -> None:
    assert main([*RUN, "--torch", f"a_step:{function}", "--repeat", "1", *options]) == 0
    assert "have the same bits as eager torch's" in capsys.readouterr().out


def test_run_says_where_the_numbers_are_others(capsys: Output) -> None:
    assert main([*RUN, "--torch", "a_step:never_the_same", "--repeat", "1"]) == 1
    assert "WRONG: they are not those of eager torch" in capsys.readouterr().out


def test_run_says_that_there_is_no_schedule(capsys: Output) -> None:
    arguments = [*RUN, "--method", "network-wide"]
    assert main(arguments) == 1
    assert "network-wide found no schedule of training-step-b16" in capsys.readouterr().out
    assert main([*arguments, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["status"] == "unknown"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--torch", "a_step"), "'a_step' names no function; write MODULE:FUNCTION"),
        (("--torch", "a_step:other"), "a_step has no function 'other'"),
        (("--budget", "1B"), "a budget of 1 bytes"),
        (("--method", "best"), "there is no method 'best'"),
        (("--link", "fast"), "link"),
        (("--picture", "no/p.png"), "no/p.png cannot be written"),
        (("--save", "a_step.py/plan"), "a_step.py/plan cannot be a folder: a_step.py is a file"),
    ],
)
def test_run_refuses_wrong_arguments(capsys: Output, arguments: tuple[str, ...], words: str) -> None:
    assert main([*RUN, *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert words in line
    assert sorted(path.name for path in Path.cwd().iterdir() if path.suffix != "") == ["a_step.py"]


# --- profiles -----------------------------------------------------------------------------------------

PROFILE = ("profile", "--torch", "a_step:make_step", "--batch", "16", "--repeat", "1", "-o", "p.json")


def test_a_profile_serves_instances_comparisons_and_runs(capsys: Output) -> None:
    assert main([*PROFILE, "--clip", "0.5", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["network"] == "a_step:make_step"
    assert told["tasks"] == told["algorithms"] > 20
    profile = read_profile("p.json")
    step = ("--torch", "a_step:make_step", "--batch", "16", "--profile", "p.json")
    assert main(["instance", *step, "--steady", "--budget", "80%", "-o", "i.json"]) == 0
    instance = read_instance("i.json")
    measured = profile.algorithms[16]
    assert [task.algorithms for task in instance.tasks] == [measured[task.name] for task in instance.tasks]
    assert len(instance.carried) > 10
    assert not any(task.recomputable for task in instance.tasks)
    capsys.readouterr()
    options = ("--weights-as-blocks", "--budget", "80%", "--time-limit", "0.5s", "--methods", "flow,modnn")
    assert main(["compare", *step, *options, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ideal_ns"] == sum(one.duration_ns for (one,) in measured.values())
    assert {row["method"] for row in found["results"] if row["makespan_ns"]} >= {"flow"}
    assert main([*RUN, "--clip", "0.5", "--profile", "p.json", "--repeat", "1"]) == 0
    assert "have the same bits as eager torch's" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("profile", "-o", "p.json"), "give NETWORK or --torch, such as pebbler profile lenet"),
        ((*PROFILE, "lenet"), "a profile is made from one thing"),
        (
            (*PROFILE, "--backend", "cuda"),
            "is measured where its module is; leave --backend and --provider out",
        ),
        ((*PROFILE, "-o", "no/p.json"), "no/p.json cannot be written"),
        (("profile", "--torch", "a_step:make_step", "-o", "p.json"), "give one as --batch N"),
        (("profile", "lenet", "--clip", "1", "-o", "p.json"), "--clip is for a training step of torch"),
    ],
)
def test_profile_refuses_wrong_arguments(capsys: Output, arguments: tuple[str, ...], words: str) -> None:
    assert main(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line
    assert not Path("p.json").exists()


def test_a_profile_of_a_network_is_none_of_a_step(capsys: Output) -> None:
    assert main(["profile", "lenet", "--batch", "1", "--repeat", "1", "-o", "p.json"]) == 0
    step = ("--torch", "a_step:make_step", "--batch", "16", "--profile", "p.json")
    assert main(["instance", *step, "--budget", "1GiB", "-o", "i.json"]) == 2
    assert "the profile is of the network 'lenet', not of 'a_step:make_step'" in capsys.readouterr().err
    assert main(["fits", *step]) == 2
    assert "settles --profile; leave the option out" in capsys.readouterr().err
