"""Caffe's graphs, and what Layrub's program makes of them."""

from __future__ import annotations

import pytest

from caffe_graph import caffe_instance, caffe_resident_bytes
from layrub_caffe import (
    MIB,
    TABLE_6,
    added_at,
    buffers,
    caffe_iteration_ns,
    caffe_process_bytes,
    on_caffe,
    process_bytes,
    program_ns,
)
from pebbler.heuristics.methods import Limits, find_method
from pebbler.instances.errors import PebblerError
from pebbler.instances.networks.accounting import layrub_data_and_gradient
from pebbler.instances.networks.builder import NetworkBuilder
from pebbler.instances.networks.zoo import find_network
from pebbler.validate.check import check


@pytest.mark.parametrize(
    "name", ["lenet", "cifar10_quick", "alexnet_caffe", "googlenet_bvlc", "resnet34", "resnet50", "wrn28_10"]
)
def test_data_and_gradients_are_those_that_the_paper_counts(name: str) -> None:
    """Table 1 and section 5.1; the loss counts for nothing, and signs and what layers keep are no data."""
    network = find_network(name)
    losses = {f"Y({layer.name})" for layer in network.layers if layer.kind.is_loss}
    blocks = on_caffe(name, 3, keeps=False).blocks
    counted = sum(b.bytes for b in blocks if b.name not in losses and not b.name.startswith("sign("))
    assert counted == layrub_data_and_gradient(network, 3)


def test_every_layer_is_on_its_own_and_in_place_where_caffe_is() -> None:
    """A convolution with batch norm and ReLU is four layers on one blob."""
    build = NetworkBuilder("small")
    x = build.input(3, 8, 8)
    x = build.conv("conv", x, 4, 3, pad=1, bias=False)
    x = build.bn("bn", x, relu=True)
    x = build.maxpool("pool", x, 2, stride=2)
    build.softmax("loss", build.fc("fc", x, 10))
    instance = caffe_instance(build.finish(), 2, "K40", "4", 2**30)
    kinds = [layer.kind for layer in instance.named_layers]
    assert kinds == ["conv", "bn", "scale", "relu", "maxpool", "fc", "softmax"]
    tasks = {task.name: task for task in instance.tasks}
    (blob,) = tasks["FP(conv)"].outputs
    for name in ("bn", "scale bn", "relu bn"):
        assert tasks[f"FP({name})"].updates == (blob,)
        assert not set(tasks[f"BP({name})"].inputs) & {blob}
    size = instance.blocks[blob].bytes
    kept = {b.name: b for b in instance.blocks if not b.name.startswith(("X(", "Y(", "dY("))}
    assert {name: b.bytes for name, b in kept.items()} == {
        "norm(bn)": size,
        "deviation(bn)": size,
        "copy(scale bn)": size,
        "sign(relu bn)": size // 4,
        "index(pool)": size // 4,
    }
    assert [name for name, b in kept.items() if b.offload_ns is None] == ["index(pool)"]
    assert tasks["BP(bn)"].algorithms[0].workspace_bytes == size


def test_a_fork_has_a_split_that_adds_up_the_gradients_of_its_readers() -> None:
    instance = on_caffe("resnet34", 2)
    blocks = instance.blocks
    splits = [task for task in instance.tasks if task.name.startswith("BP(split ")]
    readers = [[blocks[d].name for d in task.inputs] for task in splits]
    assert len(splits) == 16  # one for each of the 16 blocks
    assert readers[-1] == ["dY(pool1) of res2_1_conv1", "dY(pool1) of res2_1_add"]
    assert [blocks[d].name for d in splits[-1].outputs] == ["dY(pool1)"]


def test_what_stays_is_weights_with_momentum_statistics_and_input() -> None:
    network = find_network("resnet50")
    parameters, statistics, pixels = 25_557_032, 2 * 26_560, 3 * 224 * 224
    assert caffe_resident_bytes(network, 32) == 4 * (3 * (parameters + statistics) + 3 * 32 * pixels)


def test_a_layer_that_caffe_has_not_is_refused() -> None:
    with pytest.raises(PebblerError, match=r"layer '.*' is of kind '.*', which is not Caffe's"):
        caffe_instance(find_network("gpt2"), 1, "K40", "4", 2**40)


# --- what the program makes of them ---------------------------------------------------------------------


@pytest.mark.parametrize("network", ["resnet50", "resnet152"])
def test_759_5_mb_from_50_layers_on(network: str) -> None:
    """Section 5.2.1, from shapes and rules alone; 0.12 MiB are the loss, which the paper does not count."""
    taken = buffers(network, 32)
    assert (taken.data, taken.forks, taken.splits) == (343 * MIB, 196 * MIB, 196 * MIB)
    assert taken.signs == 24.5 * MIB
    assert (taken.hybrid - taken.allocated) / MIB == 759.5
    assert taken.allocated < 0.13 * MIB


def test_24_mb_of_signs_on_googlenet() -> None:
    """Section 5.2.3: the extra memory of the hybrid strategy."""
    assert buffers("googlenet_bvlc", 32).signs == 24.5 * MIB


def test_the_wide_networks_of_fig_10() -> None:
    """Inter-layer reuse alone saves 13.6 % on average; intra-layer reuse is close to 50 %."""
    for network in ("wrn8_128", "wrn8_256"):
        baseline, taken = layrub_data_and_gradient(find_network(network), 128), buffers(network, 128)
        assert 1 - taken.inter / baseline == pytest.approx(0.136, abs=0.015)
        assert 1 - taken.intra / baseline == pytest.approx(0.5, abs=0.05)


def test_two_constants_and_the_rules_give_the_row_that_they_were_not_fitted_to() -> None:
    """Table 6: ResNet-34, which a fit to bottleneck networks misses by a third."""
    assert process_bytes("resnet34", 32) / MIB / TABLE_6["resnet34"].layrub == pytest.approx(1, abs=0.03)
    for network, abs_ in (("resnet34", 0.09), ("resnet50", 0.03)):
        assert caffe_process_bytes(network, 32) / MIB / (TABLE_6[network].caffe or 0) == pytest.approx(
            1, abs=abs_
        )


def test_the_program_copies_more_than_the_text_and_costs_more() -> None:
    instance = on_caffe("lenet", 64)
    schedules = [
        find_method(x).call(instance, Limits()).schedule for x in ("layrub-program", "layrub-hybrid")
    ]
    bytes_copied = []
    for schedule in schedules:
        assert schedule is not None
        assert check(instance, schedule).reasons == ()
        bytes_copied.append(
            sum(instance.blocks[o.block or 0].bytes for o in schedule.operations if o.kind == "prefetch")
        )
    assert bytes_copied[0] > bytes_copied[1]
    assert program_ns("lenet", 64) == (schedules[0].makespan_ns if schedules[0] else 0)
    base = caffe_iteration_ns("lenet", 64)
    assert 0 <= added_at("lenet", 64, 10 * base) < program_ns("lenet", 64) / base - 1
