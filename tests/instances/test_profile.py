import json

import msgspec
import pytest

from pebbler.instances.errors import FormatError, PebblerError
from pebbler.instances.instance import Instance, Slowdown
from pebbler.instances.origin import LaunchTimes
from pebbler.instances.profile import (
    CopyTimes,
    Machine,
    Profile,
    TaskTimes,
    read_profile,
    write_profile,
)
from pebbler.instances.workload import HOST_CALL_NS, Workload


def profile_of(instance: Instance) -> Profile:
    """A profile that was never measured: everything takes twice as long as in an instance."""
    tasks = tuple(
        TaskTimes(
            sub_batch=instance.made_from.sub_batch,
            name=task.name,
            algorithms=tuple(
                msgspec.structs.replace(item, duration_ns=2 * item.duration_ns) for item in task.algorithms
            ),
        )
        for task in instance.tasks
    )
    return Profile(
        network=instance.made_from.network,
        graph=instance.made_from.graph,
        machine=Machine(
            device="Model", memory_bytes=10**9, driver="1.0", libraries={"x": "2"}, date="2026-11-20"
        ),
        copies=(
            CopyTimes(bytes=1000, offload_ns=500, prefetch_ns=600, move_ns=70),
            CopyTimes(bytes=2000, offload_ns=901, prefetch_ns=600, move_ns=71),
            CopyTimes(bytes=10_000, offload_ns=4000, prefetch_ns=5000, move_ns=80),
        ),
        tasks=tasks,
    )


@pytest.fixture
def modelled() -> Instance:
    return Workload("lenet", 64, "K40").instance("1GiB", 16)


@pytest.fixture
def profile(modelled) -> Profile:
    return profile_of(modelled)


def test_a_profile_stands_in_for_the_cost_model(profile, modelled):
    workload = Workload("lenet", 64, "Model", profile=profile)
    instance = workload.instance("1GiB", 16)
    for old, new in zip(modelled.tasks, instance.tasks, strict=True):
        assert [2 * item.duration_ns for item in old.algorithms] == [i.duration_ns for i in new.algorithms]
        assert old.blocks == new.blocks
    for block in instance.blocks:
        assert block.offload_ns == profile.copy_ns(block.bytes, "offload")
        assert block.prefetch_ns == profile.copy_ns(block.bytes, "prefetch")
        assert block.move_ns == profile.move_ns(block.bytes)
    assert instance.made_from.cost_model == "profile"
    assert instance.made_from.device == "Model"
    assert instance.meta["measured"]["date"] == "2026-11-20"
    assert "measured" not in modelled.meta


@pytest.mark.parametrize(
    ("size", "offload", "move"),
    [
        (1, 500, 70),
        (1000, 500, 70),
        (1500, 701, 71),  # 700.5 and 70.5 round up
        (2000, 901, 71),
        (6000, 2451, 76),  # half of 901 to 4000, and of 71 to 80
        (10_000, 4000, 80),
        (25_000, 10_000, 200),
    ],
)
def test_copies_lie_on_the_line_between_measured_sizes(profile, size, offload, move):
    assert profile.copy_ns(size, "offload") == offload
    assert profile.move_ns(size) == move


def test_a_file_reads_as_it_was_written(profile, tmp_path):
    path = tmp_path / "lenet.profile.json"
    checksum = write_profile(profile, path)
    again = read_profile(path)
    assert write_profile(again, tmp_path / "again") == checksum
    assert again.algorithms == profile.algorithms
    assert again.machine == profile.machine


def test_a_file_without_what_was_added_later_reads_and_is_written_as_it_was(profile, tmp_path):
    path = tmp_path / "old.json"
    write_profile(profile, path)
    document = json.loads(path.read_text())
    assert all(list(one) == ["bytes", "offload_ns", "prefetch_ns", "move_ns"] for one in document["copies"])
    del document["launches"]
    path.write_text(json.dumps(document))
    old = read_profile(path)
    assert old.launches is None
    assert old.copies == profile.copies
    assert old.copies[0].offload_beside_prefetch_ns is None


def test_launches_and_copies_in_both_directions_are_kept(profile, tmp_path):
    copies = tuple(
        msgspec.structs.replace(one, offload_beside_prefetch_ns=7, prefetch_beside_offload_ns=8)
        for one in profile.copies
    )
    launches = LaunchTimes(host_ns=4000, gap_ns=900, graph_gap_ns=600)
    write_profile(msgspec.structs.replace(profile, copies=copies, launches=launches), tmp_path / "new.json")
    again = read_profile(tmp_path / "new.json")
    assert (again.copies, again.launches) == (copies, launches)
    assert again.copy_ns(6000, "offload") == profile.copy_ns(6000, "offload")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(speed=1), "unknown field `speed`"),
        (lambda d: d.pop("format"), "missing required field `format`"),
        (lambda d: d["machine"].pop("date"), r"missing required field `date` - at `\$.machine`"),
        (lambda d: d["tasks"][0].update(sub_batch=0), r"`int` >= 1 - at `\$.tasks\[0\].sub_batch`"),
        (lambda d: d.update(copies=[]), "copies: there is none"),
        (lambda d: d.update(launches={"host_ns": 1}), r"missing required field `gap_ns` - at `\$.launches`"),
        (lambda d: d["copies"][0].update(offload_beside_prefetch_ns=-1), r"`int` >= 0 - at `\$.copies\[0\]"),
        (lambda d: d["copies"].reverse(), r"copies\[1\]: 2000 bytes do not come after 10000"),
        (lambda d: d["tasks"].append(d["tasks"][0]), r"\('FP\(conv1\)', sub-batch 16\): it is listed twice"),
        (lambda d: d["tasks"][1].update(algorithms=[]), r"tasks\[1\] .*it has no algorithm"),
        (lambda d: d["tasks"][1]["algorithms"][0].update(duration_ns=1.5), "Expected `int`, got `float`"),
    ],
)
def test_bad_files_are_refused(profile, tmp_path, change, message):
    path = tmp_path / "bad.json"
    write_profile(profile, path)
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))
    with pytest.raises(FormatError, match=f"(?i)bad.json is not a profile: .*{message}") as error:
        read_profile(path)
    assert "\n" not in str(error.value)


def test_what_was_not_measured_is_refused(profile):
    workload = Workload("lenet", 64, "Model", profile=profile)
    with pytest.raises(PebblerError, match="has no sub-batch 64; it has 16"):
        workload.instance("1GiB")
    short = msgspec.structs.replace(profile, tasks=profile.tasks[:-1])
    with pytest.raises(PebblerError, match=r"has no task '.*' at sub-batch 16; measure it again"):
        Workload("lenet", 64, "Model", profile=short).instance("1GiB", 16)


@pytest.mark.parametrize(
    ("workload", "message"),
    [
        ({"network": "alexnet"}, "the profile is of the network 'lenet', not of 'alexnet'"),
        ({"device": "K40"}, "the profile is of the device 'Model', not of 'K40'"),
        ({"graph": "paper"}, "the profile is of the graph 'executable', not of 'paper'"),
    ],
)
def test_a_profile_of_something_else_is_refused(profile, workload, message):
    asked = {"network": "lenet", "batch": 64, "device": "Model", **workload}
    with pytest.raises(PebblerError, match=message):
        Workload(**asked, profile=profile)


def test_a_profile_has_no_times_of_updates(profile):
    with pytest.raises(PebblerError, match="no times of the weights' updates on the device; give a"):
        Workload("lenet", 16, "Model", profile=profile, steady=True, optimizer="adam")
    frozen = Workload("lenet", 16, "Model", profile=profile, steady=True, optimizer="none").instance("1GiB")
    assert len(frozen.carried) == 4
    assert frozen.tasks[0].algorithms == profile.task_algorithms(16, "FP(conv1)")


def test_an_optimizer_on_the_host_takes_what_was_measured(tmp_path):
    asked = {"steady": True, "optimizer": "adamw", "optimizer_on": "host"}
    steady = Workload("lenet", 16, "K40", **asked).instance("1GiB")
    measured = msgspec.structs.replace(profile_of(steady), host_bandwidth=10**9)
    write_profile(measured, tmp_path / "host.json")
    workload = Workload("lenet", 16, "Model", profile=read_profile(tmp_path / "host.json"), **asked)
    size = {block.name: block.bytes for block in steady.blocks}["W(ip1)"]
    (update,) = (task for task in workload.instance("1GiB").tasks if task.name == "OPT(ip1)")
    assert update.algorithms[0].duration_ns == HOST_CALL_NS + 7 * size
    assert update.algorithms[0].on == "host"
    unknown = Workload("lenet", 16, "Model", profile=profile_of(steady), **asked)
    with pytest.raises(PebblerError, match="no time of an optimizer on the host; give host_bandwidth"):
        unknown.instance("1GiB")
    with pytest.raises(PebblerError, match="let it run on the host"):
        Workload("lenet", 16, "Model", profile=measured, **(asked | {"optimizer_on": "choose"}))


def test_both_directions_together_and_slowdown_are_measured(profile, tmp_path):
    assert profile.both_bandwidth is None
    with pytest.raises(PebblerError, match="was not measured for the profile"):
        Workload("lenet", 16, "Model", profile=profile, link_both="measured")
    largest = msgspec.structs.replace(
        profile.copies[-1], offload_beside_prefetch_ns=8000, prefetch_beside_offload_ns=5000
    )
    slowdown = Slowdown(offload=100_000, prefetch=20_000)
    measured = msgspec.structs.replace(profile, copies=(*profile.copies[:-1], largest), slowdown_ppm=slowdown)
    write_profile(measured, tmp_path / "both.json")
    measured = read_profile(tmp_path / "both.json")
    assert measured.both_bandwidth == 3_250_000_000
    plain = Workload("lenet", 16, "Model", profile=measured).instance("1GiB")
    assert plain.link is msgspec.UNSET
    assert all(task.slowdown_ppm is msgspec.UNSET for task in plain.tasks)
    asked = Workload("lenet", 16, "Model", profile=measured, link_both="measured", slowdown=True)
    instance = asked.instance("1GiB")
    assert instance.link.both_bytes_per_second == 3_250_000_000
    assert {task.slowdown_ppm for task in instance.tasks} == {slowdown}


def test_the_example_of_the_documentation_is_a_profile(pytestconfig, tmp_path):
    text = (pytestconfig.rootpath / "docs" / "profiles.md").read_text(encoding="utf-8")
    (tmp_path / "example.json").write_text(text.split("```json\n")[1].split("```")[0])
    assert read_profile(tmp_path / "example.json").machine.device == "Example"


@pytest.mark.parametrize("key", ["inputs", "outputs"])
def test_a_profile_says_nothing_of_what_is_read_or_made(profile: Profile, key: str) -> None:
    first, *others = profile.tasks
    own = msgspec.structs.replace(first.algorithms[0], **{key: (0,)})
    changed = msgspec.structs.replace(first, algorithms=(own,))
    with pytest.raises(FormatError, match="what a task reads and makes is its network's"):
        msgspec.structs.replace(profile, tasks=(changed, *others))
