"""What is damaged: small valid files of every format, and a command line for each command that takes them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from pebbler import Workload, best_bound, solve, trace_of
from pebbler.benchmark.output.machine import origin
from pebbler.benchmark.sweeps.jobs import Found, Setting
from pebbler.benchmark.sweeps.problems import About
from pebbler.benchmark.sweeps.results import Results, Run
from pebbler.heuristics.parts import with_parts
from pebbler.heuristics.production.exports import torch_tags
from pebbler.instances.files import encode
from pebbler.instances.gpus.workload import cluster_instances, several_gpus
from pebbler.instances.instance import Instance
from pebbler.instances.profile import CopyTimes, Machine, Profile, TaskTimes
from pebbler.instances.suites.suite import find_suite, members
from pebbler.instances.transforms import with_inputs_on_clock, with_recomputation
from pebbler.validate.bounds.certificate import Certificate
from pebbler.validate.schedule import Schedule

from ..adversary.instances import with_own_inputs, with_own_outputs

CONFIG = b"""title = "a run that is there"

[[sweep]]
suites = ["tiny"]
select = ["chain2-s1"]
files = []
methods = ["modnn"]
time_limits = ["5s"]
seeds = [0]
"""

BUFFERS = b"id,lower,upper,size,alignment\na,0,3,4,1\nb,1,5,8,2\nc,3,9,4,4\n"

KERNELS = b"""{"t_launch_ns": 3000, "kernels": [
 {"name": "im2col", "grid": [12, 1, 1], "block": [512, 1, 1], "shared_bytes": 0, "registers": 33,
  "duration_ns": 12000},
 {"name": "sgemm", "grid": [2, 4, 1], "block": [256, 1, 1], "shared_bytes": 8448, "registers": 70,
  "duration_ns": 20000, "invocations": 2}]}"""

RECORDS = b"""{"records": [{"name": "im2col", "gridX": 12, "gridY": 1, "gridZ": 1, "blockX": 512, "blockY": 1,
 "blockZ": 1, "staticSharedMemory": 0, "dynamicSharedMemory": 0, "registersPerThread": 33,
 "start": 0, "end": 9000},
 {"name": "sgemm", "gridX": 2, "gridY": 4, "gridZ": 1, "blockX": 256, "blockY": 1, "blockZ": 1,
 "staticSharedMemory": 8448, "dynamicSharedMemory": 0, "registersPerThread": 70,
 "start": 12000, "end": 20000}]}"""

GRAPH = b"""{"nodes": [{"id": 0, "out_cost": 4, "duration": 2}, {"id": 1, "out_cost": 8, "duration": 3},
 {"id": 2, "out_cost": 2, "duration": 1}], "links": [{"source": 0, "target": 1}, {"source": 1, "target": 2},
 {"source": 0, "target": 2}], "graph": {}}"""

LOG = b"""{"INSTRUCTION": "CONSTANT", "NAME": "x"}
{"INSTRUCTION": "MEMORY", "NAME": "x", "MEMORY": "4"}
{"INSTRUCTION": "CALL", "NAME": "relu", "ARGS": ["x"], "RESULT": ["y"], "TIME": "7"}
{"INSTRUCTION": "MEMORY", "NAME": "y", "MEMORY": "4"}
{"INSTRUCTION": "ALIAS", "NAME": "y", "ALIAS": "-1"}
{"INSTRUCTION": "RELEASE", "NAME": "x"}
"""

FORWARD = b"""\
class GraphModule(torch.nn.Module):
    def forward(self, primals_1: "f32[256, 64][64, 1]cuda:0", primals_2: "f32[1024, 64][64, 1]cuda:0"):
        t: "f32[64, 256][1, 64]cuda:0" = torch.ops.aten.t.default(primals_1)
        mm: "f32[1024, 256][256, 1]cuda:0" = torch.ops.aten.mm.default(primals_2, t);  t = None
        return (mm, primals_2)
"""


@dataclass(frozen=True, slots=True)
class Form:
    """A valid command line; words in braces are files, and {out} is a place that is not there.

    `values` are options that may be added, each with values that are right.
    """

    words: tuple[str, ...]
    values: dict[str, tuple[str, ...]]

    @property
    def command(self) -> str:
        return self.words[0]

    @property
    def weight(self) -> int:
        """How often it is drawn: some commands take seconds where others take none."""
        slow = (
            "bench",
            "best-known",
            "compare",
            "contest",
            "fits",
            "frontier",
            "generate",
            "measure",
            "methods",
            "devices",
            "networks",
            "profile",
            "report",
            "schemas",
            "suite",
        )
        return 1 if self.command in slow else 3 if self.command in ("run", "solve") else 10


LIMITS = {
    "--time-limit": ("1s", "500ms"),
    "--seed": ("1",),
    "--workers": ("1",),
    "--memory": ("contiguous", "paged"),
}
WORKLOAD = {
    "--batch": ("2",),
    "--sub-batch": ("1",),
    "--device": ("k40", "{device}"),
    "--profile": ("{profile}",),
    "--budget": ("50%", "1.05xMmin", "2MiB"),
    "--graph": ("executable", "paper"),
    "--engines": ("duplex", "single"),
    "--onnx": ("{onnx}",),
    "--link": ("pcie3", "1GB", "2GB/s,1GB/s"),
}
TRANSFORMS = {
    "--inputs-on-clock": (),
    "--recompute": (),
    "--mask": (),
    "--weights-as-blocks": (),
    "--steady": (),
    "--streams": ("also", "only"),
    "--parts": ("auto", "2MiB"),
}
GPUS = {
    "--gpus": ("2",),
    "--nodes": ("2",),
    "--bus": ("12GB",),
    "--cores": ("1",),
    "--network": ("1Gbps",),
    "--nvlink": ("25GB",),
}
MEASURE = {
    "--networks": ("lenet/2", "resnet:blocks=1-1-1-1,basic=1/2,lenet/1"),
    "--budgets": ("1.1xMmin,50%", "2MiB"),
    "--methods": ("modnn",),
    "--layers": ("siamese/conv1",),
    "--device": ("k40", "{device}"),
    "--provider": ("cudnn",),
    "--time-limit": ("1s",),
    "--unit-limit": ("1s",),
    "--repeat": ("1",),
}


def _form(line: str, *values: dict[str, tuple[str, ...]]) -> Form:
    return Form(tuple(line.split()), {name: good for some in values for name, good in some.items()})


FORMS = (
    _form("check {instance} {schedule}"),
    _form("check-bound {instance} {certificate}"),
    _form("check-trace {trace}"),
    _form("trace {instance} {schedule} -o {out}"),
    _form("policy {instance} {schedule}", {"--for": ("torch", "megatron"), "-o": ("{out}",)}),
    _form("emit {lenet} {lenet_schedule} -o {out}"),
    _form(
        "run {lenet} {lenet_schedule} --backend cpu --repeat 1",
        {
            "--seed": ("1",),
            "--no-reference": (),
            "--operations": (),
            "--picture": ("{out}",),
            "--trace": ("{out}",),
        },
    ),
    _form("bound {instance} -o {out}", {"--memory": ("contiguous", "paged")}),
    _form(
        "bound {instance} --time-limit 300ms", {"--memory": ("contiguous", "paged"), "--solver": ("highs",)}
    ),
    _form(
        "solve {instance} --method modnn -o {out}",
        LIMITS,
        {"--warm-start": ("{schedule}",), "--without": ("x",)},
    ),
    _form("solve {instance} --method vdnn-all-m -o {out}", LIMITS),
    _form("solve {again} --method policy:{policy} -o {out}", LIMITS),
    _form("solve {instance} --method local-search --time-limit 300ms -o {out}", LIMITS),
    _form("compare {instance} --methods network-wide,modnn --out {out} --time-limit 500ms", LIMITS, GPUS),
    _form("compare lenet --batch 2 --methods network-wide --out {out}", LIMITS, WORKLOAD, GPUS),
    _form("frontier {instance} --method modnn --points 2 -o {out} --time-limit 500ms", LIMITS),
    _form(
        "frontier lenet --over batch --method network-wide --budget 2MiB --overhead 5% -o {out}",
        LIMITS,
        WORKLOAD,
    ),
    _form("frontier {instance} --over link --overhead 5% --method modnn --time-limit 500ms -o {out}", LIMITS),
    _form(
        "fits lenet --batch 2 --time-limit 500ms --out {out}",
        LIMITS,
        WORKLOAD,
        {"--reserve": ("1MiB",), "--optimizer": ("none", "momentum")},
    ),
    _form("instance lenet --batch 2 -o {out}", WORKLOAD, TRANSFORMS),
    _form("instance lenet --batch 2 --device {device} -o {out}", WORKLOAD, TRANSFORMS),
    _form("instance lenet --batch 2 --profile {profile} -o {out}", WORKLOAD, TRANSFORMS),
    _form("instance --onnx {onnx} --batch 2 -o {out}", WORKLOAD, TRANSFORMS),
    _form("instance --from {graph} --budget 80% -o {out}", TRANSFORMS, {"--link": ("pcie3",)}),
    _form("instance --from {log} --budget 80% -o {out}", TRANSFORMS, {"--link": ("pcie3",)}),
    _form(
        "pack {buffers} --time-limit 500ms -o {out}",
        {"--capacity": ("1kB",), "--seed": ("1",), "--workers": ("1",)},
    ),
    _form(
        "pack {buffers} {more_buffers} --time-limit 500ms",
        {"--capacity": ("1kB",), "--seed": ("1",), "-o": ("{out}",)},
    ),
    _form(
        "streams {kernels}",
        {"--device": ("k40", "{device}"), "--batch": ("4",), "--solver": ("highs", "cp-sat")},
    ),
    _form("streams {records}", {"--model": ("corrected", "as-printed", "as-implemented"), "--batch": ("4",)}),
    _form(
        "streams siamese/conv1 --batch 2",
        {"--pass": ("backward",), "--picture": ("{out}",), "--device": ("k40",)},
    ),
    _form("bench {config} -o {results}", {"--jobs": ("1",), "--retry": ()}),
    _form("report {results} -o {out}", {"--parquet": (), "--check": ()}),
    _form("profile lenet --batch 1 --repeat 1 -o {out}", {"--sub-batch": ("1",), "--provider": ("cudnn",)}),
    _form("measure --smoke --out {out}", MEASURE),  # without a GPU it is refused
    _form("measure --stages solve,page --page {page} --out {out}", MEASURE),
    _form("measure --stages solve --out {out} --archive packed", MEASURE),
    _form("generate tiny -o {out}"),
    _form("suite export tiny -o {out}"),
    _form("best-known tiny"),
    _form("best-known tiny --admit {schedule} -o {out}", LIMITS, {"--methods": ("modnn",)}),
    _form("best-known submit tiny {schedule} -o {out}", {"--memory": ("paged",)}),
    _form("best-known verify {schedule}"),
    _form("contest commit -o {out}"),
    _form("contest draw {config} --count 2 -o {out}"),
    _form("schemas", {"-o": ("{out}",)}),
    _form("schemas instance"),
    _form("networks lenet", {"--batch": ("2",)}),
    _form("devices"),
    _form("methods"),
)
"""Every command is here, those with more kinds of input more often."""


def seeds() -> dict[str, tuple[bytes, ...]]:
    """Return valid contents of every kind of file."""
    tiny = [member.build() for member in members(find_suite("tiny"))]
    chain = next(one for one in tiny if one.name.startswith("chain2-s1"))
    rich = with_inputs_on_clock(with_recomputation(Workload("lenet", 1, "k40").instance("1.1xMmin")))
    pairs = [(one, _scheduled(one)) for one in (*tiny[:3], rich)]
    work = Workload("lenet", 2, "k40")
    cluster = cluster_instances(work, several_gpus(work, 2), "1GiB")[0]
    lenet = Workload("lenet", 1, "k40").instance("1.1xMmin")
    parts = with_parts(Workload("lenet", 1, "k40").instance("1.2xMmin"))
    reading = with_own_outputs(Random(1), with_own_inputs(Random(1), chain))
    return {
        "instance": (*(encode(one) for one, _ in pairs), encode(cluster), encode(parts), encode(reading)),
        "schedule": tuple(encode(schedule) for _, schedule in pairs),
        "trace": tuple(encode(trace_of(one, schedule)) for one, schedule in pairs),
        "certificate": tuple(encode(_certificate(one)) for one, _ in pairs),
        "lenet": (encode(lenet),),
        "lenet_schedule": (encode(_scheduled(lenet)),),
        "profile": (encode(_profile()),),
        "device": (_device(),),
        "config": (CONFIG,),
        "buffers": (BUFFERS,),
        "more_buffers": (BUFFERS,),
        "kernels": (KERNELS,),
        "records": (RECORDS,),
        "graph": (GRAPH,),
        "log": (LOG,),
        "results": (_results(chain),),
        "onnx": _onnx(),
        "again": (encode(rich),),
        "policy": (_tags(rich), FORWARD),
        "page": (b"# GPU\n<!-- begin gpu -->\n<!-- end of gpu -->\n",),
    }


def _tags(instance: Instance) -> bytes:
    lines = torch_tags(instance, _scheduled(instance)).lines
    assert len(lines) > 3
    return "\n".join(lines).encode()


def _scheduled(instance: Instance) -> Schedule:
    for method in ("network-wide", "modnn", "vdnn-all-m"):
        found = solve(instance, method=method).schedule
        if found is not None:
            return found
    raise AssertionError(f"no method has a schedule of {instance.name}")


def _certificate(instance: Instance) -> Certificate:
    found = best_bound(instance).certificate
    assert found is not None
    return found


def _profile() -> Profile:
    """A profile of LeNet whose figures are those of the cost model."""
    instance = Workload("lenet", 2, "k40").instance("1GiB")
    return Profile(
        network="lenet",
        graph="executable",
        machine=Machine(
            device="cpu", memory_bytes=2**30, driver="1", libraries={"NumPy": "2"}, date="2026-01-01"
        ),
        copies=(
            CopyTimes(bytes=1024, offload_ns=1000, prefetch_ns=1000, move_ns=100),
            CopyTimes(bytes=2048, offload_ns=1500, prefetch_ns=1500, move_ns=150),
        ),
        tasks=tuple(
            TaskTimes(sub_batch=2, name=task.name, algorithms=task.algorithms) for task in instance.tasks
        ),
    )


def _device() -> bytes:
    """The packaged file, as far as it tells of one device."""
    text = resources.files("pebbler.instances.devices").joinpath("devices.toml").read_text("utf-8")
    found = re.search(r"^\[K40\].*?(?=^\[(?!K40))", text, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[0].encode()


def _results(instance: Instance) -> bytes:
    """A results file of two runs that were never made."""
    about = About("net/1/K40/50%", "0" * 64, "f" * 64, "net", 1, "K40", "executable", "1", "duplex", 10, 100)
    found = Found(
        status="feasible",
        stopped_by="done",
        iteration_ns=20,
        ideal_ns=10,
        lower_bound_ns=10,
        bound_by="compute",
        certified=True,
        rounds=1,
        trace=((0.5, 20, 10),),
        solve_seconds=0.5,
    )
    data = encode(instance)
    with TemporaryDirectory() as folder:
        path = Path(folder, "results.sqlite")
        with Results(path, write=True) as results:
            for fingerprint, method in (("a", "modnn"), ("b", "network-wide")):
                results.add(
                    Run(
                        fingerprint=fingerprint,
                        about=about,
                        seed=0,
                        setting=Setting(method),
                        found=found,
                        wall_seconds=1.0,
                        date="2026-01-01",
                        origin=origin(),
                    ),
                    [data],
                )
        return path.read_bytes()


def _onnx() -> tuple[bytes, ...]:
    if find_spec("onnx") is None:
        return (b"\x08\x07\x12\x04test",)
    from onnx import TensorProto, helper

    weights = helper.make_tensor("w", TensorProto.FLOAT, (2, 1, 3, 3), [0.5] * 18)
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"], name="conv"), helper.make_node("Relu", ["y"], ["z"])],
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 1, 8, 8))],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, None)],
        [weights],
    )
    return (bytes(helper.make_model(graph).SerializeToString()),)
