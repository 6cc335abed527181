"""Mixtures of experts against what is published of them, and how many tokens an expert gets."""

import pytest

from pebbler.instances.networks.network import Network
from pebbler.instances.networks.zoo import find_network


def multiply_adds(network: Network) -> int:
    """Multiply-adds of one sequence, forward, where causal attention counts as if it were not.

    Published counts leave out biases and routers.
    """
    count = 0
    for layer in network.layers:
        inputs = sum(network[source].shape.channels for source in layer.inputs)
        if layer.kind.name in ("linear", "experts") and not layer.name.endswith("_router"):
            count += layer.shape.elements * inputs
        count += 2 * layer.products
    return count


@pytest.mark.parametrize(
    ("name", "millions", "gflops"),
    [("moe_xs", 839, 316), ("moe_small", 3693, 879), ("moe_medium", 13041, 2487)],
)
def test_switch_models_have_the_weights_and_operations_that_megablocks_prints(name, millions, gflops):
    """Gale et al. 2023, Table 2: operations are those of a sequence, forward and backward."""
    network = find_network(name)
    assert round(network.parameters / 1e6) == millions
    assert round(3 * 2 * multiply_adds(network) / 1e9) == gflops


def test_a_token_of_mixtral_passes_13_of_47_billion_weights():
    """Jiang et al. 2024, section 2.1; two of eight experts are 12.88 billion with both tables of words."""
    network = find_network("mixtral_8x7b")
    assert round(network.parameters / 1e9) == 47
    experts = sum(layer.parameters for layer in network.layers if layer.kind.name == "experts")
    active = network.parameters - experts * 6 // 8
    assert round(active / 1e9, 2) == 12.88
    table = network["embed"].parameters
    norms = sum(layer.parameters for layer in network.layers if layer.kind.name == "norm")
    routers = sum(layer.parameters for layer in network.layers if layer.name.endswith("_router"))
    attention = sum(layer.products for layer in network.layers)
    passed = multiply_adds(network) - 2 * attention + 2048 * routers
    assert passed == 2048 * (active - table - norms)


@pytest.mark.parametrize(
    ("spec", "slots"),
    [
        ("mixtral_8x7b", 512),
        ("mixtral_8x7b:top=1", 256),
        ("mixtral_8x7b:capacity=125", 640),
        ("mixtral_8x7b:tokens=100,experts=3", 67),
        ("mixtral_8x7b:capacity=400", 2048),
        ("moe_small", 16),
        ("moe_small:capacity=125", 20),
        ("moe_small:capacity=1", 1),
    ],
)
def test_an_expert_has_an_equal_part_of_the_tokens_times_its_capacity_rounded_up(spec, slots):
    """Fedus et al. 2022, equation 3."""
    network = find_network(spec)
    (dispatch,) = {layer.shape.positions for layer in network.layers if layer.kind.name == "dispatch"}
    (experts,) = {layer.groups for layer in network.layers if layer.kind.name == "experts"}
    assert dispatch == experts * slots


def test_a_layer_is_that_of_llama_or_gpt2_with_experts_for_its_perceptron():
    for name, dense, layer in (
        ("mixtral_8x7b:layers=1", "llama32_1b:layers=1,width=4096,hidden=14336", "layer0"),
        ("moe_small:layers=1", "gpt2:layers=1", "h0"),
    ):
        found, plain = find_network(name), find_network(dense)
        end = f"{layer}_add1"
        upto = [one.name for one in found.layers].index(end) + 1
        wanted = [(one.name, one.kind.name, one.inputs, one.shape) for one in plain.layers[3:upto]]
        assert [(one.name, one.kind.name, one.inputs, one.shape) for one in found.layers[3:upto]] == wanted
        assert found[f"{layer}_add2"].inputs == (end, f"{layer}_combine")
