"""Joint graphs of torch: tasks, blocks and costs of the text that torch logs, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from pebbler.heuristics.production.partition import Partition
from pebbler.heuristics.recomputation.plan import turn
from pebbler.heuristics.recomputation.rules import planned
from pebbler.instances.errors import FormatError, PebblerError
from pebbler.instances.foreign.read import read_foreign
from pebbler.instances.instance import Instance

JOINT = """\
class inner_f(torch.nn.Module):
    def forward(self, primals, tangents):
        primals_1: "bf16[256, 64][64, 1]cuda:0"; primals_2: "bf16[1024, 64][64, 1]cuda:0"
        tangents_1: "f32[][]cuda:0"

        primals_1, primals_2, tangents_1, = fx_pytree.tree_flatten_spec([primals, tangents], self._in_spec)
        # File: model.py:3 in forward, code: return torch.relu(x @ w.T).float().std()
        t: "bf16[64, 256][1, 64]cuda:0" = torch.ops.aten.t.default(primals_1);  primals_1 = None
        mm: "bf16[1024, 256][256, 1]cuda:0" = torch.ops.aten.mm.default(primals_2, t);  t = None
        relu: "bf16[1024, 256][256, 1]cuda:0" = torch.ops.aten.relu.default(mm);  mm = None
        var_mean = torch.ops.aten.var_mean.correction(relu, [0, 1], correction = 1)
        getitem: "f32[][]cuda:0" = var_mean[0]
        getitem_1: "f32[][]cuda:0" = var_mean[1];  var_mean = None
        expand: "f32[1024, 256][0, 0]cuda:0" = torch.ops.aten.expand.default(tangents_1, [1024, 256])
        mul: "f32[1024, 256][256, 1]cuda:0" = torch.ops.aten.mul.Tensor(expand, getitem_1)
        gt: "b8[1024, 256][256, 1]cuda:0" = torch.ops.aten.gt.Scalar(relu, 0);  relu = None
        where: "bf16[1024, 256][256, 1]cuda:0" = torch.ops.aten.mul.Tensor(mul, gt);  mul = gt = None
        t_1: "bf16[256, 1024][1, 256]cuda:0" = torch.ops.aten.t.default(where);  where = None
        mm_1: "bf16[256, 64][64, 1]cuda:0" = torch.ops.aten.mm.default(t_1, primals_2);  t_1 = None
        return pytree.tree_unflatten([getitem, mm_1, None], self._out_spec)
"""
KIB = 1024


def read(folder: Path, text: str = JOINT, name: str = "small-joint.txt", device: str = "A100") -> Instance:
    path = folder / name
    path.write_text(text)
    return read_foreign(path, device)


def test_operators_are_tasks_and_views_are_none(tmp_path: Path) -> None:
    instance = read(tmp_path)
    assert [task.name for task in instance.tasks] == [
        "FP(mm mm)",
        "FP(relu relu)",
        "FP(var_mean var_mean)",
        "BP(tangents loss)",
        "BP(mul mul)",
        "BP(gt gt)",
        "BP(where mul)",
        "BP(mm_1 mm)",
    ]
    assert instance.name == "small-joint"
    assert turn(instance) == 3
    where = {block.name: block for block in instance.blocks}
    assert where["primals_2"].initially == "device"
    assert {name: block.bytes // KIB for name, block in where.items() if block.bytes >= KIB} == {
        "primals_2": 128,
        "mm": 512,
        "relu": 512,
        "mul": 1024,
        "gt": 256,
        "where": 512,
    }
    assert instance.resident_bytes == 2 * 32 * KIB  # the parameter and its gradient


def test_what_a_view_shares_is_read(tmp_path: Path) -> None:
    """The last product reads ``where`` by a transposed view, the scaling the tangent by an expanded one."""
    instance = read(tmp_path)
    names = {task.name: [instance.blocks[d].name for d in task.inputs] for task in instance.tasks}
    assert names["BP(mm_1 mm)"] == ["where", "primals_2"]
    assert names["BP(mul mul)"] == ["tangents_1", "getitem_1"]
    (loss,) = [task for task in instance.tasks if task.name == "BP(tangents loss)"]
    assert [instance.blocks[d].name for d in loss.updates] == ["getitem"]
    assert [instance.blocks[d].name for d in loss.outputs] == ["tangents_1"]


MM = "torch.ops.aten.mm.default(primals_2, t)"


def test_nodes_that_compute_the_same_are_one(tmp_path: Path) -> None:
    """The backward pass has the product, its rectifier and a part of its moments once more; a mean is new.

    Keywords count: a variance with another correction is no other's.
    """
    again = f"""\
        t_2: "bf16[64, 256][1, 64]cuda:0" = torch.ops.aten.t.default(primals_1);  primals_1 = None
        mm_2: "bf16[1024, 256][256, 1]cuda:0" = {MM.replace(", t)", ", t_2)")};  t_2 = None
        relu_1: "bf16[1024, 256][256, 1]cuda:0" = torch.ops.aten.relu.default(mm_2);  mm_2 = None
        var_mean_1 = torch.ops.aten.var_mean.correction(relu_1, [0, 1], correction = 1)
        getitem_2: "f32[][]cuda:0" = var_mean_1[1];  var_mean_1 = None
        var_mean_2 = torch.ops.aten.var_mean.correction(relu_1, [0, 1], correction = 0)
        getitem_3: "f32[][]cuda:0" = var_mean_2[1];  var_mean_2 = None
        gt: """
    text = JOINT.replace("        gt: ", again).replace("gt.Scalar(relu, 0)", "gt.Scalar(relu_1, 0)")
    text = text.replace("(mul, gt)", "(mul, gt, getitem_2, getitem_3)")
    instance, plain = read(tmp_path, text), read(tmp_path)
    names = {task.name: [instance.blocks[d].name for d in task.inputs] for task in instance.tasks}
    assert names.keys() - {task.name for task in plain.tasks} == {"BP(var_mean_2 var_mean)"}
    assert names["BP(gt gt)"] == names["BP(var_mean_2 var_mean)"] == ["relu"]
    assert names["BP(where mul)"] == ["mul", "gt", "getitem_1", "getitem_3"]


def test_what_only_a_copy_takes_of_a_result_is_the_first_nodes(tmp_path: Path) -> None:
    text = JOINT.replace('        getitem_1: "f32[][]cuda:0" = var_mean[1];  var_mean = None\n', "")
    copy = """\
        std = torch.ops.aten.std_mean.correction(primals_2, [0])
        one: "f32[64][1]cuda:0" = std[0];  std = None
        std_1 = torch.ops.aten.std_mean.correction(primals_2, [0])
        two: "f32[64][1]cuda:0" = std_1[0]
        getitem_1: "f32[64][1]cuda:0" = std_1[1];  std_1 = None
        mul: """
    instance = read(
        tmp_path, text.replace("        mul: ", copy).replace("getitem_1)", "getitem_1, one, two)")
    )
    (std,) = [task for task in instance.tasks if "std" in task.name]
    assert [instance.blocks[d].name for d in std.outputs] == ["one", "getitem_1"]
    (mul,) = [task for task in instance.tasks if task.name == "BP(mul mul)"]
    assert [instance.blocks[d].name for d in mul.inputs] == ["tangents_1", "getitem_1", "one"]


@pytest.mark.parametrize(("operator", "returned"), [("rand_like", ""), ("empty", ""), ("relu", "twin, ")])
def test_random_numbers_and_results_are_never_one(tmp_path: Path, operator: str, returned: str) -> None:
    twin = f"""\
        twin: "bf16[1024, 256][256, 1]cuda:0" = torch.ops.aten.{operator}.default(mm)
        other: "bf16[1024, 256][256, 1]cuda:0" = torch.ops.aten.{operator}.default(mm)
        relu: """
    text = JOINT.replace("        relu: ", twin).replace("[getitem, ", f"[{returned}getitem, ")
    names = {task.name for task in read(tmp_path, text).tasks}
    assert {f"FP(twin {operator})", f"FP(other {operator})"} <= names


def test_products_are_on_tensor_cores_where_the_device_has_them(tmp_path: Path) -> None:
    wide = JOINT.replace("1024", "8192").replace("256", "8192").replace("64", "8192")
    times = {
        device: [
            min(a.duration_ns for a in task.algorithms) for task in read(tmp_path, wide, device=device).tasks
        ]
        for device in ("A100", "H100")
    }
    flops = 2 * 8192**3
    for device, peak in (("A100", 312e12), ("H100", 989.5e12)):
        assert flops / peak * 1e9 < times[device][0] < 2.5 * flops / peak * 1e9
    assert times["H100"][-1] < times["A100"][-1]


@pytest.mark.parametrize(
    ("left", "right", "made", "flops"),
    [
        ("[8192, 4096]", "[8, 4096, 14336]", "[8192, 14336]", 2 * 8192 * 4096 * 14336),
        ("[4096, 8192]", "[8192, 14336]", "[8, 4096, 14336]", 2 * 8192 * 4096 * 14336),
        ("[8, 1024, 4096]", "[8, 4096, 14336]", "[8, 1024, 14336]", 2 * 8192 * 4096 * 14336),
        ("[8, 14336, 4096]", "[4096, 8192]", "[14336, 8192]", 2 * 8192 * 4096 * 14336),
    ],
)
def test_products_of_experts_take_the_time_of_their_operations(
    tmp_path: Path, left: str, right: str, made: str, flops: int
) -> None:
    """Tokens of all experts by their weights, the gradient of these, and both ways with equal groups."""
    text = JOINT.replace('primals_1: "bf16[256, 64][64, 1]', f'primals_1: "bf16{left}')
    text = text.replace('primals_2: "bf16[1024, 64][64, 1]', f'primals_2: "bf16{right}')
    text = text.replace("mm.default(primals_2, t)", "exp.default(t)")
    text = text.replace("mm.default(t_1, primals_2)", "exp.default(t_1)")
    call = f"""\
        offs: "i32[8]cuda:0" = torch.ops.aten.arange.default(8)
        experts: "bf16{made}cuda:0" = torch.ops.aten._grouped_mm.default(primals_1, primals_2, offs)
        relu: """
    text = text.replace("        relu: ", call).replace("relu.default(mm)", "relu.default(experts)")
    (task,) = [one for one in read(tmp_path, text).tasks if "_grouped_mm" in one.name]
    assert flops / 312e12 * 1e9 < task.algorithms[0].duration_ns < 2 * flops / 312e12 * 1e9


def test_rules_of_torch_plan_the_graph_that_torch_has_logged(tmp_path: Path) -> None:
    """A product is not made again: what the backward pass reads behind it is saved.

    Of what is made together with an output, nothing is made again, for the output has been given away.
    """
    instance = planned(read(tmp_path))
    assert {instance.blocks[d].name for d in Partition(instance).most} == {"relu", "getitem_1"}


def test_lines_of_a_log_are_read_without_their_beginnings(tmp_path: Path) -> None:
    begin = "I1126 16:26:04.995000 12227 torch/graph_compile.py:1780] [0/0] [__aot_joint_graph] "
    logged = "".join(f"{begin}{line}\n" for line in [" ===== Joint graph 0 =====", *JOINT.splitlines()])
    told = "W1126 16:26:05.1 1 torch/other.py:3] another line\n"
    text = f"{told}{logged}{told}"
    assert read(tmp_path, text).tasks == read(tmp_path).tasks


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("        return pytree", "        nothing = pytree", "returns nothing"),
        ("getitem, mm_1, None]", "mm_1, None]", "with 2 primals, 1 tangents and 2 results"),
        ("bf16[1024, 64][64, 1]", "bf16[s0, 64][64, 1]", "which has no fixed sizes"),
        ("bf16[1024, 64][64, 1]", "q7[1024, 64][64, 1]", "unknown type 'q7'"),
        ("bf16[1024, 64][64, 1]", "bf16[1024, 64][64]", "another number of strides"),
        (
            "torch.ops.aten.mm.default(t_1, primals_2)",
            "torch.ops.aten.mm.default(t_1)",
            "otherwise than torch",
        ),
        ("torch.ops.aten.relu.default(mm)", "torch.ops.aten.relu.default(mm", "no Python, line"),
        ("torch.ops.aten.relu.default(mm)", "mm + 1", r"is mm \+ 1, not a call"),
        ("(tangents_1, [1024, 256])", "(getitem, [1024, 256])", "nothing reads a tangent"),
        ("class inner_f", f"{JOINT}\nclass inner_f", "has 2 joint graphs"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(tmp_path: Path, old: str, new: str, told: str) -> None:
    with pytest.raises(FormatError, match=told):
        read(tmp_path, JOINT.replace(old, new))


def test_other_files_have_times_of_their_own(tmp_path: Path) -> None:
    with pytest.raises(PebblerError, match="has times of its own; leave the device out"):
        read(tmp_path, "{}")
