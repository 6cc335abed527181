"""Scripts of instances and schedules whose texts try to get out of their place."""

from __future__ import annotations

import ast
import copy
import io
import re
import shutil
import subprocess
import tokenize
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pebbler import Workload, solve
from pebbler.instances.errors import PebblerError
from pebbler.instances.instance import Instance
from pebbler.instances.transforms import split_parts
from pebbler.validate.execution.cuda.calls import source
from pebbler.validate.execution.emit import emit
from pebbler.validate.execution.rebuild import rebuild
from pebbler.validate.schedule import Schedule


def replace(struct: Any, **changes: object) -> Any:
    """A copy with other values, which no file could hold: the script must be safe by itself."""
    made = copy.copy(struct)
    for name, value in changes.items():
        msgspec.structs.force_setattr(made, name, value)
    return made


CODE = "import os; os.system('true')"
BREAKS = [
    f"x\n{CODE}",
    f"x\r{CODE}",
    f"x\r\n{CODE}",
    f"x\x0b{CODE}",
    f"x\x0c{CODE}",
    f"x\x1c{CODE}",
    f"x\x85{CODE}",
    f"x\u2028{CODE}",
    f"x\u2029{CODE}",
    f"x\x00{CODE}",
    f'"""\n{CODE}\n"""',
    f"'''\n{CODE}\n'''",
    f'"; {CODE} #',
    "\\",
    "\\N{no such",
    "\\x",
    "\x1b[2J\u202e",
    "# <CUDNN",
    "@PROGRAM@",
    "x" * 10_000,
]


@pytest.fixture(scope="module")
def case() -> tuple[Instance, Schedule]:
    """LeNet in parts, with copies: there are names of parts, tasks and algorithms."""
    instance = split_parts(Workload("lenet", batch=4, device="k40").instance("1.2xMmin"), 2**21)
    schedule = solve(instance, method="vdnn-all-m").schedule
    assert schedule is not None
    assert any(operation.kind == "offload" for operation in schedule.operations)
    return instance, schedule


def test_a_script_carries_nothing_from_round_to_round() -> None:
    instance = Workload("lenet", batch=4, device="k40", steady=True).instance("64MiB")
    schedule = solve(instance, method="modnn").schedule
    assert schedule is not None
    text = script_of(instance, schedule)
    assert 'gradients["W(conv1)"] = np.concatenate([fetch(' in text
    twice = msgspec.structs.replace(instance, rounds=2)
    with pytest.raises(PebblerError, match="does not carry blocks over 2 rounds"):
        emit(twice, schedule, rebuild(instance))


@cache
def shape(script: str) -> str:
    """What a script does: its syntax tree, where every string counts as the same."""
    tree = ast.parse(script)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node.value = ""
    return ast.dump(tree)


@cache
def comments(script: str) -> int:
    """How many it has."""
    tokens = tokenize.generate_tokens(io.StringIO(script).readline)
    return sum(token.type == tokenize.COMMENT for token in tokens)


def script_of(instance: Instance, schedule: Schedule) -> str:
    return emit(instance, schedule, rebuild(instance))


@pytest.mark.parametrize("text", BREAKS)
def test_no_text_becomes_code(text: str, case: tuple[Instance, Schedule]) -> None:
    instance, schedule = case
    plain = script_of(instance, schedule)
    renamed = replace(
        instance,
        name=text,
        meta={"source": text},
        origin=replace(instance.origin, device=text, notes=text, cost_model=text),
        blocks=tuple(
            replace(block, name=f"{text} {d}", tensor=block.tensor or block.name, begin=block.begin or 0)
            for d, block in enumerate(instance.blocks)
        ),
    )
    script = script_of(renamed, replace(schedule, method=text, instance=text, meta={"note": text}))
    assert shape(script) == shape(plain)
    assert len(script.splitlines()) == len(plain.splitlines())
    assert all(character.isprintable() or character == "\n" for character in script)
    assert max(map(len, script.splitlines())) < max(map(len, plain.splitlines())) + 300
    assert comments(script) == comments(plain)


@pytest.mark.parametrize("text", BREAKS)
def test_unknown_algorithms_are_refused(text: str, case: tuple[Instance, Schedule]) -> None:
    instance, schedule = case
    for kind in ("FP(conv1)", "BP2(conv2)", "FP(pool1)", "FP(ip1)"):
        assert any(task.name == kind for task in instance.tasks)
        renamed = replace(
            instance,
            tasks=tuple(
                replace(task, algorithms=tuple(replace(one, name=text) for one in task.algorithms))
                if task.name == kind
                else task
                for task in instance.tasks
            ),
        )
        with pytest.raises(PebblerError, match="no algorithm"):
            script_of(renamed, schedule)


@pytest.mark.parametrize("text", ["lenet\n", "vgg16:size=32\n", "vgg16:size=\u0663\u0662"])
def test_the_name_of_the_network_stays_in_its_string(text: str) -> None:
    instance = Workload(
        "lenet" if text.startswith("lenet") else "vgg16:size=32", batch=1, device="k40"
    ).instance("10GiB")
    schedule = solve(instance, method="network-wide").schedule
    assert schedule is not None
    named = replace(instance, origin=replace(instance.origin, network=text))
    try:
        script = script_of(named, schedule)
    except PebblerError:
        return
    assert shape(script) == shape(script_of(instance, schedule))
    assert all(character.isprintable() or character == "\n" for character in script)


def compile_with_nvcc(text: str, folder: Path) -> str:
    """What NVIDIA's compiler says about a source, warnings being errors; nothing when it is content."""
    if shutil.which("nvcc") is None:
        pytest.skip("NVIDIA's compiler is not installed")
    (folder / "source.cu").write_text(text, encoding="utf-8")
    command = ["nvcc", "-arch=sm_80", "--cubin", "-Werror", "all-warnings", "-o", "made.cubin", "source.cu"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    return done.stdout + done.stderr


@pytest.mark.slow
def test_nvcc_takes_our_kernels(tmp_path: Path) -> None:
    assert compile_with_nvcc(source(), tmp_path) == ""


def test_nvcc_takes_the_kernels_of_a_script(case: tuple[Instance, Schedule], tmp_path: Path) -> None:
    kernels = re.search(r'KERNELS = r"""(.*?)"""', script_of(*case), re.DOTALL)
    assert kernels is not None
    assert kernels[1].count("KERNEL(") < source().count("KERNEL(")
    assert compile_with_nvcc(kernels[1], tmp_path) == ""
