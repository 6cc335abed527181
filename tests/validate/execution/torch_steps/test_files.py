"""Plans as files: what comes back trains with the same bits, and what was changed is refused."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ....extras import needs_torch

torch = needs_torch()

from msgspec.structs import replace  # noqa: E402

import pebbler.torch  # noqa: E402
from pebbler.instances.errors import PebblerError  # noqa: E402
from pebbler.torch import TrainingPlan  # noqa: E402

from .models import checkpointed, cnn, gpt, half, lstm, momentum, noisy  # noqa: E402
from .training import (  # noqa: E402
    BATCH,
    Make,
    are_equal,
    assert_trains_as_eager,
    eager_step,
    made_by,
    planned,
    recorded,
    train,
    within,
)

STEP = f"training-step-b{BATCH}"


@pytest.fixture(scope="module")
def plan() -> TrainingPlan:
    return within(recorded(cnn), "1.5xMmin", "modnn")


@pytest.fixture(scope="module")
def saved(plan: TrainingPlan, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plans") / "below" / "plan"
    plan.save(folder)
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "plan"))


def assert_refused(folder: Path, told: str) -> None:
    with pytest.raises(PebblerError, match=re.escape(told)) as caught:
        pebbler.torch.load(folder)
    assert len(str(caught.value).splitlines()) == 1


def changed(folder: Path, kind: str, change: Callable[[Any], None]) -> None:
    """Change a file of a plan, and give it the checksum that it then has."""
    file, index = folder / f"{STEP}.{kind}.json", folder / "plan.json"
    document = json.loads(file.read_bytes())
    change(document)
    file.write_text(json.dumps(document))
    plan = json.loads(index.read_bytes())
    plan["steps"][0][f"{kind}_sha256"] = hashlib.sha256(file.read_bytes()).hexdigest()
    index.write_text(json.dumps(plan))


@pytest.mark.parametrize("make", [gpt, lstm, half, checkpointed, momentum])
def test_a_plan_that_is_read_again_trains_as_eager_torch(make: Make, tmp_path: Path) -> None:
    plan = within(recorded(make), "1.5xMmin", "modnn")
    plan.save(tmp_path)
    again = pebbler.torch.load(tmp_path)
    assert again.instance == plan.instance
    assert replace(again.schedule, instance_sha256=None) == plan.schedule
    assert str(again) == str(plan)
    assert_trains_as_eager(make, again, steps=3)


def test_files_of_a_plan_that_is_read_again_are_the_same(saved: Path, tmp_path: Path) -> None:
    pebbler.torch.load(saved).save(tmp_path)
    assert {file.name for file in saved.iterdir()} == {
        "plan.json",
        *(f"{STEP}.{kind}.json" for kind in ("instance", "schedule", "record")),
    }
    for file in saved.iterdir():
        assert (tmp_path / file.name).read_bytes() == file.read_bytes(), file.name


def test_all_sizes_are_read_again(tmp_path: Path) -> None:
    planned(noisy, "1.5xMmin", batch=(BATCH, 5), method="modnn").save(tmp_path)
    again = pebbler.torch.load(tmp_path)
    assert [plan.batch for plan in (again, *again.others)] == [BATCH, 5]
    eager, ours = made_by(noisy), made_by(noisy)
    with again.bind(ours[0], ours[3]) as step:
        (x,) = ours[2]
        torch.manual_seed(7)
        found = [step(x), step(x[: 5 * 64]), step(x)]
        torch.manual_seed(7)
        take = eager_step(eager)
        assert are_equal(found, [take(x), take(x[: 5 * 64]), take(x)])


def test_a_file_that_ends_anywhere_is_refused_by_name(saved: Path, folder: Path) -> None:
    for file in saved.iterdir():
        data = file.read_bytes()
        for part in range(20):
            (folder / file.name).write_bytes(data[: len(data) * part // 20])
            assert_refused(folder, file.name)
        (folder / file.name).unlink()
        assert_refused(folder, f"{file.name} cannot be read: No such file")
        (folder / file.name).write_bytes(data)
    pebbler.torch.load(folder)


def test_a_record_that_ends_anywhere_is_no_record(folder: Path) -> None:
    from pebbler.instances.importers.torch_record_file import read_record

    file = folder / f"{STEP}.record.json"
    data = file.read_bytes()
    for part in range(40):
        file.write_bytes(data[: len(data) * part // 40])
        with pytest.raises(PebblerError, match="is not the record of a training step"):
            read_record(file)


def test_an_edited_file_is_refused_by_name(folder: Path) -> None:
    file = folder / f"{STEP}.record.json"
    file.write_text(file.read_text().replace("aten::relu_", "aten::neg_", 1))
    assert_refused(folder, f"{file.name} is not as it was when the plan was saved; save the plan anew")


def test_a_plan_of_another_torch_is_refused(folder: Path) -> None:
    changed(folder, "record", lambda record: record["environment"].update(torch="2.12.0"))
    assert_refused(folder, f"it was recorded with torch 2.12.0, and this is {torch.__version__}")


def test_a_schedule_that_is_not_valid_is_refused(folder: Path) -> None:
    def without_waits(schedule: Any) -> None:
        del schedule["instance_sha256"]
        for operation in schedule["operations"]:
            operation.pop("after", None)

    changed(folder, "schedule", without_waits)
    assert_refused(folder, f"{STEP}.schedule.json is not a valid schedule: ")


def test_an_instance_of_something_else_is_refused(folder: Path) -> None:
    def smaller(instance: Any) -> None:
        task = next(task for task in instance["tasks"] if task["algorithms"][0]["workspace_bytes"])
        task["algorithms"][0]["workspace_bytes"] = 0

    changed(folder, "instance", smaller)
    assert_refused(folder, f"{STEP}.instance.json does not fit {STEP}.record.json: ")
    assert_refused(folder, "has too little scratch")


def operator_with(record: Any, word: str) -> Any:
    calls = (call for one in record["operators"] for call in (one, *one["then"]))
    return next(call for call in calls if word in call["overload"])


EDITS = [
    (lambda record: record.update(format="pebbler/training-step/2"), "training-step/2"),
    (lambda record: record.update(more=1), "unknown field `more`"),
    (lambda record: operator_with(record, "relu_").update(overload="aten::relu7.default"), "aten::relu7"),
    (lambda record: operator_with(record, "relu_").update(overload="load_library"), "there is no operator"),
    (lambda record: operator_with(record, "relu_")["args"][0]["tensor"].__setitem__(0, 10**6), "no storage"),
    (
        lambda record: operator_with(record, "relu_")["args"][0]["tensor"].__setitem__(4, 10**6),
        "does not lie within storage",
    ),
    (lambda record: operator_with(record, "relu_")["updates"].clear(), "are not those of its tensors"),
    (lambda record: operator_with(record, "relu_")["args"].append({"dtype": "float7"}), "no dtype 'float7'"),
    (lambda record: operator_with(record, "relu_")["args"].append({"code": "1"}), "'code' is no kind of"),
    (lambda record: operator_with(record, "relu_")["args"].append({"formula": ["+", 1]}), "formula that is"),
    (lambda record: operator_with(record, "relu_").update(draw=[0, 10**6]), "no state 1000000"),
    (
        lambda record: operator_with(record, "relu_").update(then=[dict(operator_with(record, "relu_"))]),
        "what is in 'then' has no 'then' of its own",
    ),
    (lambda record: operator_with(record, "native_batch_norm").update(idle=[0]), "are not those of its tens"),
    (lambda record: record["scalars"].clear(), "is used and not listed"),
    (lambda record: record.update(loss=3), "loss: it has no tensor"),
    (lambda record: record["storages"][0].update(values="AAAA"), "a constant has 'values'"),
    (lambda record: record["storages"][0].update(bytes=-1), "storages[0].bytes"),
]


@pytest.mark.parametrize(("change", "told"), EDITS)
def test_a_record_that_does_not_fit_together_is_refused(
    folder: Path, change: Callable[[Any], None], told: str
) -> None:
    changed(folder, "record", change)
    assert_refused(folder, f"{STEP}.record.json is not the record of a training step")
    assert_refused(folder, told)


def test_a_place_that_is_no_folder_is_refused(plan: TrainingPlan, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(PebblerError, match="file cannot be a folder: File exists"):
        plan.save(file)
    assert_refused(tmp_path, "plan.json cannot be read: No such file")


def test_a_plan_that_is_read_again_is_refused_by_another_module(saved: Path) -> None:
    made = made_by(cnn)
    made[0].stem = torch.nn.Conv2d(3, 8, 1)
    with pytest.raises(PebblerError, match=r"parameter 0 in group 0 .* none of the module's"):
        pebbler.torch.load(saved).bind(made[0], made[3])


def test_learning_rates_change_behind_a_plan_that_is_read_again(saved: Path) -> None:
    eager, ours = made_by(cnn), made_by(cnn)
    with pebbler.torch.load(saved).bind(ours[0], ours[3]) as step:
        assert are_equal(train(ours, step, 4), train(eager, eager_step(eager), 4))
