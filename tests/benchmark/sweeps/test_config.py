"""Configurations: what they mean, and what is refused."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from pebbler.benchmark.sweeps.config import read_config
from pebbler.benchmark.sweeps.jobs import Setting
from pebbler.benchmark.sweeps.problems import WorkloadProblem
from pebbler.instances.errors import PebblerError
from pebbler.instances.files import sha256_of, write_instance
from pebbler.instances.instance import Instance
from pebbler.instances.memory import parse_budget

from ..swept import SMALL, jobs_of, write_config

HEAD = 'title = "t"\n[[sweep]]\n'
TINY = HEAD + 'suites = ["tiny"]\nselect = ["chain2-s0"]\n'
ALEXNET = '[[sweep.workloads]]\nnetwork = "alexnet"\nbatch = 16\ndevice = "K40"\n'


def test_jobs_are_the_product_of_all_that_is_named(tmp_path: Path) -> None:
    text = TINY + (
        'methods = ["flow", "local-search"]\ntime_limits = ["1s", "2min"]\nmemory = ["contiguous", "paged"]\n'
        'seeds = [3, 4]\nwithout = [[], ["moves"]]\nworkers = 2\nmemory_limit = "1GB"\nwall_limit = "5min"\n'
    )
    found = jobs_of(write_config(tmp_path, text))
    assert len({job.fingerprint for job in found}) == len(found) == 2 * 2 * 2 * 2 * 2
    assert {job.seed for job in found} == {3, 4}
    assert found[-1].setting == Setting("local-search", "paged", 120.0, 300.0, 10**9, 2, ("moves",))


def test_run_is_killed_two_minutes_after_its_time_limit(tmp_path: Path) -> None:
    (limited,) = jobs_of(write_config(tmp_path, TINY + 'methods = ["flow"]\ntime_limits = ["5s"]\n'))
    (free,) = jobs_of(write_config(tmp_path, TINY + 'methods = ["flow"]\n'))
    assert (limited.setting.time_limit, limited.setting.wall_limit) == (5.0, 125.0)
    assert (free.setting.time_limit, free.setting.wall_limit) == (None, None)


def test_same_instance_from_elsewhere_is_the_same_run(tmp_path: Path) -> None:
    config = write_config(tmp_path, TINY + 'methods = ["modnn"]\n')
    (job,) = jobs_of(config)
    (instance,) = job.problem.instances()
    (tmp_path / "own").mkdir()
    checksum = write_instance(instance, tmp_path / "own" / "mine.instance.json")
    assert checksum == job.about.problem_sha256
    both = write_config(tmp_path, TINY + 'files = ["own/*.json"]\nmethods = ["modnn"]\n')
    (once,) = jobs_of(both)
    assert once.fingerprint == job.fingerprint
    (other,) = jobs_of(write_config(tmp_path, HEAD + 'files = ["own/*.json"]\nmethods = ["modnn"]\n'))
    assert other.about.problem == "own/mine"
    assert other.fingerprint == job.fingerprint


def test_file_that_changes_is_another_problem(chain: Instance, tight: Instance, tmp_path: Path) -> None:
    config = write_config(tmp_path, HEAD + 'files = ["a.instance.json"]\nmethods = ["modnn"]\n')
    write_instance(chain, tmp_path / "a.instance.json")
    (before,) = jobs_of(config)
    assert before.about.problem_sha256 == sha256_of(tmp_path / "a.instance.json")
    assert (before.about.network, before.about.batch, before.about.tasks) == ("chain", 4, 5)
    write_instance(tight, tmp_path / "a.instance.json")
    (after,) = jobs_of(config)
    assert before.about.problem == after.about.problem
    assert before.fingerprint != after.fingerprint


def test_workloads_have_a_problem_for_each_budget_that_is_enough(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = HEAD + 'methods = ["modnn"]\n' + ALEXNET + 'budgets = ["1.5xMmin", "1%", "12GiB"]\n'
    with caplog.at_level(logging.WARNING, "pebbler"):
        found = jobs_of(write_config(tmp_path, text))
    assert [job.about.problem for job in found] == ["alexnet/16/K40/1.5xMmin", "alexnet/16/K40/12GiB"]
    assert [job.about.rounds_of for job in found] == ["16", "16"]
    assert found[1].about.budget_bytes == 12 * 2**30
    assert found[0].about.problem_sha256 != found[1].about.problem_sha256
    assert found[0].about.family_sha256 == found[1].about.family_sha256
    assert "alexnet/16/K40/1% is left out" in caplog.text


def test_weights_and_host_memory_are_part_of_the_problem(tmp_path: Path) -> None:
    text = HEAD + 'methods = ["modnn"]\n'
    for keys in (
        "",
        'precision = "bf16"',
        "weights_as_blocks = true",
        "steady = true",
        'steady = true\noptimizer = "adam"',
        'host_memory = "2GiB"',
        'link_both = "20GB/s"',
        'steady = true\noptimizer = "adamw"\noptimizer_on = "choose"\nhost_bandwidth = "40GB/s"',
    ):
        text += ALEXNET + f'budgets = ["12GiB"]\n{keys}\n'
    found = jobs_of(write_config(tmp_path, text))
    assert [job.about.problem.removeprefix("alexnet/16/K40/12GiB") for job in found] == [
        "",
        "/bf16",
        "/weights as blocks",
        "/steady, sgd",
        "/steady, adam",
        "/host memory 2GiB",
        "/link 20GB/s for both directions",
        "/steady, adamw/optimizer on either side/host 40GB/s",
    ]
    assert len({job.about.family_sha256 for job in found}) == 8


def test_sub_batch_is_part_of_the_problem(tmp_path: Path) -> None:
    text = HEAD + 'methods = ["modnn"]\n'
    for size in ('"auto"', "5", "16"):
        text += ALEXNET + f'budgets = ["1GiB"]\nsub_batch = {size}\n'
    found = jobs_of(write_config(tmp_path, text))
    told = [(job.about.problem, job.about.rounds_of, len(job.problem.instances())) for job in found]
    assert told == [
        ("alexnet/16/K40/1GiB/sub-batch auto", "auto", 1),
        ("alexnet/16/K40/1GiB/sub-batch 5", "5", 2),
        ("alexnet/16/K40/1GiB/sub-batch 16", "16", 1),
    ]
    assert len({job.about.problem_sha256 for job in found}) == 3
    assert len({job.about.family_sha256 for job in found}) == 3
    problem = found[1].problem
    assert isinstance(problem, WorkloadProblem)
    first, last = problem.instances()
    assert (first.rounds, last.rounds) == (3, 1)
    assert first.budget_bytes == last.budget_bytes == parse_budget("1GiB", first)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "missing required field `title`"),
        ('title = "t"\nsweep = []\n', "length >= 1"),
        (SMALL[: len(SMALL) // 2], "is not TOML"),
        (SMALL + "haste = 3\n", "unknown field `haste` - at `\\$.sweep\\[0\\]`"),
        (SMALL + "workers = 0\n", "workers"),
        (SMALL + 'memory = ["divisible"]\n', "divisible"),
        (SMALL + 'time_limits = ["soon"]\n', "'soon' is not a time"),
        (SMALL + 'memory_limit = "much"\n', "'much' is not a size"),
        (SMALL.replace("modnn", "mdnn"), "no method 'mdnn'; did you mean modnn"),
        (SMALL.replace("tiny", "tinny").replace("s?", "s0"), "no suite 'tinny'"),
        (SMALL.replace("chain2-s?", "chain9"), "no instance of suite 'tiny' matches chain9"),
        (SMALL + 'without = [["haste"]]\n', "has no rule 'haste'"),
        (HEAD + 'methods = ["modnn"]\n', "nothing to solve"),
        (HEAD + 'methods = ["modnn"]\nfiles = ["*.json"]\n', "no file in .* matches"),
        (HEAD + 'methods = ["modnn"]\nfiles = ["/*.json"]\n', "relative to the configuration"),
        (HEAD + 'methods = ["modnn"]\nfiles = ["*.toml"]\n', "small.toml is not an instance"),
        (
            HEAD + 'methods = ["modnn"]\n' + ALEXNET.replace("alexnet", "alexnot") + 'budgets = ["1GiB"]',
            "alexnot",
        ),
        (
            HEAD
            + 'methods = ["flow"]\nwithout = [["moves"]]\n'
            + ALEXNET
            + 'budgets = ["1GiB"]\nsub_batch = "auto"',
            "leaves no rules out",
        ),
    ],
)
def test_what_does_not_exist_is_refused(text: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(PebblerError, match=why):
        jobs_of(write_config(tmp_path, text))


def test_config_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    with pytest.raises(PebblerError, match="cannot be read"):
        read_config(tmp_path / "none.toml")
    with pytest.raises(PebblerError, match="cannot be read"):
        read_config(tmp_path)
