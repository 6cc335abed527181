import re
import sys
from dataclasses import replace

import msgspec
import pytest

from pebbler.instances.devices.device import find_device
from pebbler.instances.devices.roofline import dense_algorithms, memory_bound_algorithms
from pebbler.instances.errors import BudgetError, PebblerError
from pebbler.instances.files import encode, read_instance, write_instance
from pebbler.instances.memory import ideal_ns, least_budget, unlimited_peak
from pebbler.instances.networks.taskgraph import Graph
from pebbler.instances.networks.zoo import list_networks
from pebbler.instances.origin import Origin
from pebbler.instances.transforms import with_link
from pebbler.instances.workload import HOST_CALL_NS, Workload

from ..samples import EVERY_KIND, mostly_slow

STEADY = {"steady": True, "optimizer": "adam"}
LARGE = ("resnet1001", "resnet1172", "resnet1304", "resnet1517", "lstm_rnn")
NETWORKS = pytest.mark.parametrize(
    "name", mostly_slow((name for name in list_networks() if name not in LARGE), EVERY_KIND)
)


@pytest.fixture
def vgg16() -> Workload:
    return Workload("vgg16", 256, "K40", graph="paper")


@pytest.mark.parametrize(
    ("graph", "weights_as_blocks"),
    [
        ("executable", True),
        ("paper", False),
        pytest.param("executable", False, marks=pytest.mark.slow),
        pytest.param("paper", True, marks=pytest.mark.slow),
    ],
)
@NETWORKS
def test_every_network_gives_an_instance_that_can_be_read_back(name, graph, weights_as_blocks, tmp_path):
    workload = Workload(name, 2, "V100", graph=graph, weights_as_blocks=weights_as_blocks)
    instance = workload.instance("1xMmin")
    write_instance(instance, tmp_path / "file")
    assert read_instance(tmp_path / "file") == instance
    assert instance.budget_bytes == least_budget(instance)
    assert all(instance.uses)


def test_least_budgets_of_vgg16_on_the_paper_graph(vgg16):
    assert vgg16.minimum_budget() / 1e9 == pytest.approx(10.97, abs=0.005)
    assert vgg16.floor() == vgg16.minimum_budget(1)
    assert vgg16.floor() / 1e9 == pytest.approx(1.15, abs=0.005)


def test_budgets_refer_to_the_sub_batch(vgg16):
    instance = vgg16.instance("75%", 64)
    assert instance.budget_bytes == -(-3 * unlimited_peak(instance) // 4)
    assert vgg16.instance("1.5xMmin", 64).budget_bytes == -(-3 * vgg16.minimum_budget(64) // 2)
    assert vgg16.instance("12GiB").budget_bytes == vgg16.instance(12 * 2**30).budget_bytes == 12 * 2**30


def test_a_budget_under_the_minimum_is_refused_unless_asked_for(vgg16):
    with pytest.raises(BudgetError, match="is under the minimum"):
        vgg16.instance("10GiB")
    assert vgg16.instance("10GiB", check_budget=False).budget_bytes == 10 * 2**30


def test_the_instance_says_what_it_was_made_from():
    workload = Workload("resnet:blocks=1-1-1-1,basic=1", 8, "k40", engines="single")
    instance = workload.instance("12GiB", 2, rounds=4)
    assert instance.name == "resnet-blocks-1-1-1-1-basic-1-b2"
    assert instance.rounds == 4
    assert instance.engines == "single"
    origin, layers = instance.made_from, instance.named_layers
    assert "sub-batch" in origin.notes
    assert list(instance.meta) == ["source"]
    assert "He et al." in instance.meta["source"]
    assert msgspec.structs.replace(origin, notes=None) == Origin(
        network="resnet:blocks=1-1-1-1,basic=1",
        batch=8,
        sub_batch=2,
        device="K40",
        cudnn="4",
        graph="executable",
        cost_model="roofline",
        cost_model_version=2,
        weights_as_blocks=False,
    )
    assert [(layer.name, layer.kind) for layer in layers[:4]] == [
        ("conv1", "conv"),
        ("conv1_bn", "bn"),
        ("relu conv1_bn", "relu"),
        ("pool1", "maxpool"),
    ]
    by_name = {layer.name: layer for layer in layers}
    names = [task.name for task in instance.tasks]
    assert [names[k] for k in by_name["res2_1_conv1"].backward] == [
        "BP2(res2_1_conv1)",
        "BP1(res2_1_conv1)",
    ]
    assert [names[k] for k in by_name["relu res2_1_add"].backward] == ["BP(relu res2_1_add)"]
    indices = [k for layer in layers for k in (*layer.forward, *layer.backward)]
    assert sorted(indices) == list(range(len(instance.tasks)))


@NETWORKS
def test_every_network_has_a_steady_state(name, tmp_path):
    plain, instance = (Workload(name, 2, "V100", **keys).instance("1xMmin") for keys in ({}, STEADY))
    write_instance(instance, tmp_path / "file")
    assert read_instance(tmp_path / "file") == instance
    assert all(instance.uses)
    weights = [block.name[2:-1] for block in instance.blocks if block.name.startswith("W(")]
    updates = [task for task in instance.tasks if task.name.startswith("OPT(")]
    assert sorted(task.name[4:-1] for task in updates) == sorted(weights)
    assert len(instance.carried) == 3 * len(weights)
    others = [task.name for task in instance.tasks if task not in updates]
    assert others == [task.name for task in plain.tasks]
    assert plain.resident_bytes == 2 * sum(instance.blocks[d].bytes for d in instance.carried) // 3


@pytest.mark.parametrize(
    ("optimizer", "touched"), [(None, 3), ("sgd", 3), ("momentum", 5), ("adam", 7), ("adamw", 7), ("none", 0)]
)
def test_a_steady_state_updates_weights_at_the_rate_of_memory(optimizer, touched):
    """SGD reads dW, and reads and writes W; momentum m, too; Adam m and v."""
    device = find_device("K40")
    instance = Workload("lenet", 4, "K40", steady=True, optimizer=optimizer).instance("1xMmin")
    origin = instance.made_from
    assert (origin.steady, origin.optimizer, origin.weights_as_blocks) == (True, optimizer or "sgd", True)
    assert instance.resident_bytes == 0
    size = {block.name: block.bytes for block in instance.blocks}["W(ip1)"]
    updates = [task for task in instance.tasks if task.name.startswith("OPT")]
    assert len(updates) == (4 if touched else 0)
    for task in updates:
        if task.name == "OPT(ip1)":
            assert task.algorithms == memory_bound_algorithms(device, touched * size)
    k = {task.name: k for k, task in enumerate(instance.tasks)}
    layers = {layer.name: layer for layer in instance.named_layers}
    assert all(k[task.name] in layers[task.name[4:-1]].backward for task in updates)


@pytest.mark.parametrize(("optimizer", "touched"), [("sgd", 3), ("momentum", 5), ("adamw", 7)])
def test_an_optimizer_computes_on_the_host_or_where_a_schedule_says(optimizer, touched):
    asked = {"steady": True, "optimizer": optimizer}
    here = Workload("lenet", 4, "K40", **asked).instance("1xMmin")
    size = {block.name: block.bytes for block in here.blocks}["W(ip1)"]
    for rate, keys in ((100e9, {}), (25e9, {"host_bandwidth": "25GB/s"})):
        choose = Workload("lenet", 4, "K40", **asked, optimizer_on="choose", **keys).instance("2GiB")
        host = Workload("lenet", 4, "K40", **asked, optimizer_on="host", **keys).instance("2GiB")
        for old, either, there in zip(here.tasks, choose.tasks, host.tasks, strict=True):
            if not old.name.startswith("OPT("):
                assert old == either == there
                continue
            assert either.algorithms == (*old.algorithms, *there.algorithms)
            (algorithm,) = there.algorithms
            assert (algorithm.on, algorithm.workspace_bytes) == ("host", 0)
            if old.name == "OPT(ip1)":
                assert algorithm.duration_ns == HOST_CALL_NS + round(touched * size / rate * 1e9)


def test_bfloat16_takes_half_the_bytes_and_products_at_its_own_peak():
    """Of what an update touches, 2 bytes of dW are read, 2 of W written, and 12 of the rest both."""
    asked = {"steady": True, "optimizer": "adamw", "optimizer_on": "choose"}
    device = find_device("a100")
    single = Workload("gpt2:layers=1", 2, "a100", **asked).instance("8GiB")
    half = Workload("gpt2:layers=1", 2, "a100", **asked, precision="bf16").instance("8GiB")
    assert (single.made_from.precision, half.made_from.precision) == ("fp32", "bf16")
    assert b"precision" not in encode(single)
    tasks = {task.name: task for task in half.tasks}
    count = 768 * 3072 + 3072
    on_device, on_host = tasks["OPT(h0_fc)"].algorithms
    assert (on_device,) == memory_bound_algorithms(device, 28 * count)
    assert on_host.duration_ns == HOST_CALL_NS + round(28 * count / 100e9 * 1e9)
    assert tasks["FP(h0_fc)"].algorithms == dense_algorithms(device, 2048, 768, 3072, "FP", 0, "bf16")
    for old, new in zip(single.tasks, half.tasks, strict=True):
        slower = old.name.startswith("OPT")  # which has the weights twice
        assert (new.algorithms[0].duration_ns < old.algorithms[0].duration_ns) != slower
    with pytest.raises(PebblerError, match="precision is 'fp8'; give 'fp32' or 'bf16'"):
        Workload("lenet", 1, "a100", precision="fp8")  # type: ignore[arg-type]


def test_convolutions_in_bfloat16_are_products_on_tensor_cores():
    single = Workload("resnet18", 8, "a100").instance("8GiB")
    half = Workload("resnet18", 8, "a100", precision="bf16").instance("8GiB")
    for old, new in zip(single.tasks, half.tasks, strict=True):
        faster = min(a.duration_ns for a in new.algorithms) < min(a.duration_ns for a in old.algorithms)
        assert faster != (old.name in ("FP(conv1)", "BP2(conv1)"))  # whose 3 channels no tensor core takes
    names = {algorithm.name for task in half.tasks for algorithm in task.algorithms}
    assert not any("winograd" in name or "fft" in name for name in names)


def test_a_host_is_as_fast_as_the_device_says():
    asked = {"steady": True, "optimizer": "adam", "optimizer_on": "host"}
    slow, fast = (
        {task.name: task for task in Workload("lenet", 4, name, **asked).instance("1GiB").tasks}
        for name in ("K40", "GH200")
    )
    times = [tasks["OPT(ip1)"].algorithms[0].duration_ns - HOST_CALL_NS for tasks in (slow, fast)]
    assert times[0] == pytest.approx(3.8 * times[1], rel=1e-4)


def test_a_link_for_both_directions_is_asked_for_or_measured():
    plain = Workload("lenet", 4, "A100").instance("1GiB")
    assert plain.link is msgspec.UNSET
    asked = [("30GB/s", 30 * 10**9), (7, 7), ("1Gbps", 125 * 10**6), ("measured", 36_500_000_000)]
    for both, rate in asked:
        instance = Workload("lenet", 4, "A100", link_both=both).instance("1GiB")
        assert instance.link.both_bytes_per_second == rate
        assert msgspec.structs.replace(instance, link=msgspec.UNSET) == plain
    both = Workload("lenet", 4, "A100", link="pcie3", link_both="20GB/s").instance("1GiB")
    assert both.blocks == with_link(plain, "pcie3").blocks
    assert both.link.both_bytes_per_second == 20 * 10**9


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"link_both": "fast"}, "'fast' is not a bandwidth"),
        ({"link_both": 0}, "link_both is 0; give whole bytes a second"),
        ({"link_both": 1.5}, "link_both is 1.5; give whole bytes a second"),
        ({"link_both": "measured"}, "was not measured for K40; give link_both"),
        ({"link_both": "measured", "link": "pcie4"}, "a link of one's own has nothing measured"),
        ({"slowdown": True}, "give a profile that has slowdown_ppm"),
        ({"slowdown": 1}, "slowdown"),
        ({"optimizer_on": "host"}, "no optimizer that could run elsewhere"),
        ({"optimizer_on": "choose", "steady": True, "optimizer": "none"}, "no optimizer that could run"),
        ({"optimizer_on": "gpu", "steady": True}, "optimizer_on"),
        ({"host_bandwidth": "9GB/s", "steady": True}, "this one runs on the device"),
        ({"host_bandwidth": 9, "steady": True, "optimizer_on": "host"}, "give a text"),
        ({"host_bandwidth": "0", "steady": True, "optimizer_on": "host"}, "it passes nothing"),
    ],
)
def test_wrong_hosts_and_links_are_refused(keys, message):
    with pytest.raises(PebblerError, match=re.escape(message)):
        Workload("lenet", 4, "K40", **keys)


def test_an_embedding_is_updated_as_a_whole():
    instance = Workload("gpt2:layers=1", 1, "K40", steady=True).instance("1xMmin")
    size = {block.name: block.bytes for block in instance.blocks}["W(wte)"]
    (update,) = (task for task in instance.tasks if task.name == "OPT(wte)")
    assert update.algorithms == memory_bound_algorithms(find_device("K40"), 3 * size)


def test_a_steady_state_has_one_round():
    workload = Workload("lenet", 4, "K40", steady=True)
    for ask in (
        lambda: workload.instance("1GiB", 2),
        lambda: workload.instance("1GiB", rounds=2),
        lambda: workload.rounds(2),
        workload.floor,
    ):
        with pytest.raises(PebblerError, match=r"one round, the whole batch of 4.*leave out the sub-batch"):
            ask()
    assert workload.rounds(4) == [(4, 1)]
    with pytest.raises(PebblerError, match="'adam' updates the weights of a steady state only"):
        Workload("lenet", 4, "K40", optimizer="adam")
    with pytest.raises(PebblerError, match="optimizer"):
        Workload("lenet", 4, "K40", steady=True, optimizer="lion")
    with pytest.raises(PebblerError, match="steady"):
        Workload("lenet", 4, "K40", steady=1)


def test_batch_norm_is_noted_only_where_the_batch_is_cut(vgg16):
    assert vgg16.instance("12GiB", 64).made_from.notes is None
    assert Workload("resnet18", 4, "K40").instance("12GiB").made_from.notes is None


def test_copies_take_what_the_device_says(vgg16):
    device = find_device("K40")
    for block in vgg16.instance("12GiB").blocks:
        assert block.offload_ns == device.copy_ns(block.bytes, "offload")
        assert block.prefetch_ns == device.copy_ns(block.bytes, "prefetch")
        assert block.move_ns == device.move_ns(block.bytes)


def test_durations_follow_the_work(vgg16):
    instance = vgg16.instance("12GiB", 64)
    tasks = {task.name: task for task in instance.tasks}
    base = {name: task.algorithms[0] for name, task in tasks.items()}
    assert all(algorithm.workspace_bytes == 0 for algorithm in base.values())
    assert len(tasks["FP(conv3_2)"].algorithms) > 1
    assert base["FP(conv1_2)"].duration_ns > 5 * base["FP(conv1_1)"].duration_ns
    assert base["FP(pool1)"].duration_ns > base["FP(pool2)"].duration_ns
    assert base["BP1(pool1)"].duration_ns > base["FP(pool1)"].duration_ns


def baseline(workload: Workload) -> dict[str, int]:
    tasks = workload.instance("12GiB").tasks
    return {task.name: task.algorithms[0].duration_ns for task in tasks}


def test_adding_to_a_gradient_takes_longer_than_writing_it():
    """The two convolutions have one shape; the projection's BP1 comes second to the gradient of its input."""
    duration = baseline(Workload("resnet50", 32, "V100"))
    assert duration["FP(res2_1_proj)"] == duration["FP(res2_1_conv3)"]
    assert duration["BP2(res2_1_proj)"] == duration["BP2(res2_1_conv3)"]
    assert duration["BP1(res2_1_proj)"] > duration["BP1(res2_1_conv3)"]


def test_a_fused_relu_takes_longer_than_none_but_less_than_a_task():
    executable = baseline(Workload("vgg16", 32, "V100"))
    paper = baseline(Workload("vgg16", 32, "V100", graph="paper"))
    apart = executable["BP1(conv1_2)"] + executable["BP(relu conv1_1)"]
    assert executable["BP1(conv1_2)"] < paper["BP1(conv1_2)"] < apart
    assert paper["FP(conv1_2)"] == executable["FP(conv1_2)"]


def test_a_linear_layer_is_a_dense_layer_at_every_position():
    tasks = baseline(Workload("gpt2:layers=1", 2, "K40"))
    device = find_device("K40")
    for which in ("FP", "BP1", "BP2"):
        (wanted,) = dense_algorithms(device, 2 * 1024, 768, 3072, which)
        assert tasks[f"{which}(h0_fc)"] == wanted.duration_ns


def test_products_of_experts_are_as_many_dense_ones_in_one_launch():
    """Eight experts with 512 tokens of each of 2 sequences: that of 1024 rows, eight times, launched once."""
    tasks = baseline(Workload("mixtral_8x7b:layers=1,vocabulary=1024,hidden=4096", 2, "H100"))
    device = find_device("H100")
    for which in ("FP", "BP1", "BP2"):
        (one,) = dense_algorithms(device, 2 * 512, 4096, 4096, which)
        (together,) = dense_algorithms(device, 2 * 512, 4096, 4096, which, groups=8)
        assert tasks[f"{which}(layer0_down)"] == together.duration_ns
        assert 7.5 * one.duration_ns < together.duration_ns < 8 * one.duration_ns
    few = baseline(Workload("moe_xs:layers=1", 1, "H100"))["FP(h0_fc)"]
    weights = 4 * 64 * 512 * 2048
    assert (
        few > memory_bound_algorithms(device, weights)[0].duration_ns
    )  # all weights are read, for 16 rows each


def test_attention_takes_longer_backward_and_less_than_with_its_scores_stored():
    """Two products forward, five backward; causal ones are halves; stored scores move through memory."""
    fused = baseline(Workload("gpt2:layers=1", 8, "K40"))
    assert 2.3 < fused["BP1(h0_attn)"] / fused["FP(h0_attn)"] < 2.6
    stored = baseline(Workload("gpt2:layers=1,math=1", 8, "K40"))
    parts = [stored[f"FP(h0_{part})"] for part in ("scores", "softmax", "context")]
    assert sum(parts) > 2 * fused["FP(h0_attn)"]
    assert stored["BP1(h0_scores)"] > 1.8 * stored["FP(h0_scores)"]


def test_an_embedding_moves_its_rows_only():
    tasks = baseline(Workload("gpt2:layers=1", 1, "K40"))
    device = find_device("K40")
    row = 4 * 1024 * 768
    assert tasks["FP(wte)"] == memory_bound_algorithms(device, 4 * 1024 + 2 * row)[0].duration_ns
    assert tasks["BP2(wte)"] == memory_bound_algorithms(device, 4 * 1024 + 3 * row)[0].duration_ns
    with_blocks = baseline(Workload("gpt2:layers=1", 1, "K40", weights_as_blocks=True))
    assert with_blocks["FP(wte)"] == tasks["FP(wte)"]


def ideal_an_image(name: str, batch: int, graph: Graph = "executable") -> float:
    return ideal_ns(Workload(name, batch, "K40", graph).instance(0, check_budget=False)) / batch


@pytest.mark.parametrize(
    ("name", "small", "large", "printed"),
    [
        ("alexnet_caffe", 128, 2100, 0.082),
        ("vgg16", 64, 240, 0.042),
        ("resnet34", 32, 416, 0.133),
        ("resnet50", 32, 272, 0.063),
        ("resnet56", 256, 5000, 0.092),
        ("wrn28_10", 128, 1376, 0.086),
    ],
)
def test_large_batches_save_what_layrub_prints_within_8_percentage_points(name, small, large, printed):
    """TACO 2018, Table 7: beside the model (docs/costs.md)."""
    saved = 1 - ideal_an_image(name, large) / ideal_an_image(name, small)
    assert saved == pytest.approx(printed, abs=0.075)


def test_single_images_are_slower_than_modnn_prints_without_workspace_and_faster_with():
    """TPDS 2019, section 7.3: 3.74 times on average, when the memory requirement is minimized."""
    slow, fast = [], []
    networks = {"vgg16": 256, "vgg19": 256, "vgg101b": 128, "resnet34": 256, "resnet152": 256, "fcn": 128}
    for name, batch in networks.items():
        single = Workload(name, 1, "K40", "paper").instance(0, check_budget=False)
        time = sum(task.algorithms[0].duration_ns for task in single.tasks)
        slow.append(time / ideal_an_image(name, batch, "paper"))
        fast.append(ideal_ns(single) / ideal_an_image(name, batch, "paper"))
    assert 2 < sum(fast) / len(fast) < 3.74 < sum(slow) / len(slow) < 4.6


def test_rounds_cover_the_batch(vgg16):
    assert vgg16.rounds(256) == [(256, 1)]
    assert vgg16.rounds(64) == [(64, 4)]
    assert vgg16.rounds(100) == [(100, 2), (56, 1)]


@pytest.mark.parametrize("sub_batch", [0, 257])
def test_wrong_sub_batches_are_refused(vgg16, sub_batch):
    with pytest.raises(
        PebblerError, match=f"a sub-batch of {sub_batch} is not within 1 and the batch of 256"
    ):
        vgg16.rounds(sub_batch)
    with pytest.raises(PebblerError, match="is not within"):
        vgg16.instance("12GiB", sub_batch)


def test_a_batch_must_be_positive():
    with pytest.raises(PebblerError, match="batch is 0; give a whole number from 1 on"):
        Workload("vgg16", 0, "K40")


def test_the_same_workload_gives_the_same_bytes():
    workload = Workload("resnet50", 32, "TitanX")
    assert encode(workload.instance("12GiB", 8)) == encode(workload.instance("12GiB", 8))


@pytest.mark.parametrize(
    ("network", "expected"),
    [
        ("resnet302", range(1_500, 2_500)),
        pytest.param("resnet1517", range(9_000, 10_000), marks=pytest.mark.slow),
    ],
)
def test_a_task_of_a_deep_network_takes_no_more_work_than_one_of_a_shallow_network(network, expected):
    """Work is calls, of Python and of what it is written in; a search through all tasks adds some."""

    def calls_a_task(name):
        count = 0

        def called(_frame, event, _what):
            nonlocal count
            count += event in ("call", "c_call")

        workload = Workload(name, 32, "V100")
        sys.setprofile(called)
        try:
            tasks = workload.instance("16GiB").tasks
        finally:
            sys.setprofile(None)
        return count / len(tasks), len(tasks)

    calls_a_task("resnet50")  # what is kept from the first network on
    shallow, _ = calls_a_task("resnet50")
    deep, tasks = calls_a_task(network)
    assert tasks in expected
    assert deep < 2 * shallow


@pytest.mark.parametrize("batch", [10**8, 99999999999999])
def test_a_round_with_figures_that_no_file_can_have_is_refused(batch: int) -> None:
    with pytest.raises(PebblerError, match=f"a round of {batch} images .*; give a smaller batch"):
        Workload("vgg16", batch, "k40").round(batch, 1)


def test_a_link_takes_the_place_of_the_devices(vgg16):
    plain, linked = (replace(vgg16, link=link).instance("90%", 16) for link in (None, "1GB/s,2GB/s"))
    assert linked == with_link(plain, "1GB/s,2GB/s")
    with pytest.raises(PebblerError, match="'isdn' is not a link"):
        replace(vgg16, link="isdn")
