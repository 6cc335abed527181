"""The networks against public figures: parameters and shapes."""

import pytest

from pebbler.instances.errors import PebblerError
from pebbler.instances.networks.zoo import UNAVAILABLE, find_network, list_networks


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("lenet", 431_080),
        ("cifar10_quick", 145_578),
        ("alexnet", 61_100_840),
        ("overfeat", 145_920_872),
        ("googlenet", 6_998_552),
        ("vgg16", 138_357_544),
        ("vgg19", 143_667_240),
        ("resnet18", 11_689_512),
        ("resnet34", 21_797_672),
        ("resnet50", 25_557_032),
        ("resnet101", 44_549_160),
        ("resnet152", 60_192_808),
        ("resnet152:stride_3x3=1", 60_192_808),
        ("googlenet:lrn=1", 6_998_552),
        ("siamese", 431_102),
        ("alexnet_caffe", 60_965_224),
        ("caffenet", 60_965_224),
        ("googlenet_bvlc", 13_378_280),
        ("resnet56", 853_018),
        ("wrn28_10", 36_479_194),
        ("densenet121", 7_978_856),
        ("densenet169", 14_149_480),
        ("densenet201", 20_013_928),
        ("densenet161", 28_681_000),
        ("densenet:blocks=6-12-36-24,growth=48", 28_681_000),
        ("convnext_t", 28_589_128),
        ("convnext:blocks=3-3-27-3,widths=128-256-512-1024", 88_591_464),
        ("fcn8s", 134_489_759),
        ("unet", 31_030_658),
        ("sd15_unet", 859_520_964),
        ("gpt2", 124_439_808),
        ("gpt2:math=1", 124_439_808),
        ("gpt2_medium", 354_823_168),
        ("gpt2_xl", 1_557_611_200),
        ("llama32_1b", 1_235_814_400),
        ("llama_block", 218_112_000),
        ("mixtral_8x7b", 46_702_792_704),
        ("vit_b16", 86_567_656),
        ("vit_b16:patch=32", 88_224_232),
        ("vit_l16", 304_326_632),
    ],
)
def test_parameters(name, parameters):
    assert find_network(name).parameters == parameters


@pytest.mark.parametrize(
    ("name", "millions"),
    [("resnet1001", 336.3), ("resnet1172", 394.3), ("resnet1304", 437.7), ("resnet1517", 507.2)],
)
def test_parameters_of_the_deepest_with_the_running_statistics_of_batch_norm(name, millions):
    network = find_network(name)
    running = sum(2 * layer.shape.channels for layer in network.layers if layer.kind.name == "bn")
    assert round((network.parameters + running) / 1e6, 1) == millions


def test_parameters_of_layrubs_lstm_take_the_148_mb_of_its_table_1():
    assert round(4 * find_network("lstm_rnn").parameters / 2**20) == 148
    assert find_network("lstm_rnn:steps=3").parameters == find_network("lstm_rnn").parameters


@pytest.mark.parametrize("name", [name for name in list_networks() if name.startswith(("vgg", "resnet"))])
def test_depth_is_in_the_name(name):
    layers = find_network(name).layers
    depth = sum(layer.kind.name in ("conv", "fc") and not layer.name.endswith("_proj") for layer in layers)
    assert str(depth) == name.removeprefix("vgg").removeprefix("resnet").removesuffix("b")


@pytest.mark.parametrize("name", list_networks())
def test_every_network_ends_in_losses(name):
    network = find_network(name)
    assert network.name == name
    assert network.source
    ends = [layer for layer in network.layers if not network.consumers(layer.name)]
    assert ends
    assert all(layer.kind.is_loss for layer in ends)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("cifar10_quick", (10, 1, 1)),
        ("vgg416", (1000, 1, 1)),
        ("resnet56", (10, 1, 1)),
        ("fcn", (21, 224, 224)),
        ("fcn8s", (21, 500, 500)),
        ("unet", (2, 388, 388)),
        ("lstm_rnn", (5000, 1, 1)),
        ("gpt2", (50257, 1024, 1)),
        ("vit_l16", (1000, 1, 1)),
    ],
)
def test_classes(name, shape):
    assert find_network(name).layers[-1].shape == shape


@pytest.mark.parametrize(
    ("name", "layer", "shape"),
    [
        ("alexnet", "conv1", (64, 55, 55)),
        ("alexnet", "pool5", (256, 6, 6)),
        ("overfeat", "conv2", (256, 24, 24)),
        ("overfeat", "pool5", (1024, 6, 6)),
        ("googlenet", "3a_concat", (256, 28, 28)),
        ("googlenet", "4e_concat", (832, 14, 14)),
        ("googlenet", "pool4", (832, 7, 7)),
        ("cifar10_quick", "pool3", (64, 4, 4)),
        ("lenet", "pool2", (50, 4, 4)),
        ("vgg16", "pool5", (512, 7, 7)),
        ("resnet50", "pool1", (64, 56, 56)),
        ("resnet50", "res5_3_add", (2048, 7, 7)),
        ("caffenet", "norm2", (256, 13, 13)),
        ("alexnet_caffe", "norm2", (256, 27, 27)),
        ("googlenet_bvlc", "loss1_conv", (128, 4, 4)),
        ("fcn8s", "pool5", (512, 22, 22)),
        ("fcn8s", "upscore8", (21, 568, 568)),
        ("wrn28_10", "res4_4_add", (640, 8, 8)),
        ("densenet121", "pool0", (64, 56, 56)),
        ("densenet121", "dense4_16_concat", (1024, 7, 7)),
        ("densenet161", "down3_pool", (1056, 7, 7)),
        ("convnext_t", "block4_3_add", (768, 7, 7)),
        ("sd15_unet", "middle2_add", (1280, 8, 8)),
        ("sd15_unet", "up0_2_res_add", (320, 64, 64)),
        ("vit_b16", "position", (768, 197, 1)),
        ("gpt2:math=1", "h0_scores", (12, 1024, 1024)),
        ("llama_block", "layer_k", (1024, 2048, 1)),
    ],
)
def test_shapes(name, layer, shape):
    assert find_network(name)[layer].shape == shape


def test_bottlenecks_stride_on_their_first_convolution():
    network = find_network("resnet50")
    assert [network[f"res3_1_conv{index}"].stride for index in (1, 2, 3)] == [2, 1, 1]
    assert network["res3_1_proj"].stride == 2


def test_preactivated_bottlenecks_branch_after_their_norm_only_at_the_start_of_a_stage():
    network = find_network("resnet200")
    assert sum(layer.kind.name == "add" for layer in network.layers) == 3 + 24 + 36 + 3
    assert network["res3_1_proj"].inputs == network["res3_1_conv1"].inputs == ("res3_1_bn",)
    assert network["res3_2_add"].inputs[0] == "res3_1_add"
    assert network["res2_1_conv1"].inputs == ("pool1",)
    assert network["res4_1_conv2"].stride == network["res4_1_proj"].stride == 2


def test_generic_specifications_are_the_named_networks():
    assert find_network("vgg:groups=2-2-3-3-3").layers == find_network("vgg16").layers
    assert find_network("resnet:blocks=3-4-6-3").layers == find_network("resnet50").layers
    assert find_network("resnet:blocks=3-4-6-3,basic=1").layers == find_network("resnet34").layers
    assert find_network("vgg:groups=2-24-64-4-4").layers == find_network("vgg101b").layers
    assert find_network("wrn:depth=28,width=10").layers == find_network("wrn28_10").layers
    assert find_network("vgg16:size=224").layers == find_network("vgg16").layers


def test_sizes_and_variants_are_parameters():
    assert find_network("resnet50:size=448")["res5_3_add"].shape == (2048, 14, 14)
    assert find_network("resnet50:size=448").parameters == find_network("resnet50").parameters
    assert find_network("caffenet:grouped=0")["conv2"].groups == 1
    assert find_network("gpt2:tokens=64,layers=1")["loss"].shape == (50257, 64, 1)


def test_networks_that_share_weights_say_so():
    siamese = find_network("siamese")
    assert [siamese[f"{name}_p"].tied for name in ("conv1", "ip2")] == ["conv1", "ip2"]
    assert find_network("gpt2")["lm_head"].tied == "wte"


def test_what_is_not_available_says_why():
    assert "lstm_cnn" not in list_networks()
    with pytest.raises(PebblerError, match=r"'lstm_cnn' is not available: .*no public definition"):
        find_network("lstm_cnn")
    assert all(len(reason) > 20 for reason in UNAVAILABLE.values())


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("VGG-16", "there is no network 'VGG-16'; close names: vgg16"),
        ("resnet", "'blocks' is ''; .*, or did you mean resnet18, resnet34, resnet50, resnet101"),
        ("vgg61", "there is no network 'vgg61'; close names: .*vgg16"),
        ("zzz", "there is no network 'zzz'; there are lenet,"),
        ("vgg16:groups=1", "there is no parameter 'groups'; it takes size"),
        ("lenet:size=1", "there is no parameter 'size'; it takes none"),
        ("vgg16:size=0", "'size' is '0'; give a number of 1 to 999999"),
        ("vgg16:size=20", "a window of 2 does not fit into 1"),
        ("wrn:depth=28", "'width' is ''; give a number"),
        ("wrn:depth=27,width=1", "6 n \\+ 4 layers, or 6 n \\+ 2, not 27"),
        ("resnet56:depth=55", "6 n \\+ 2 layers, not 55"),
        ("unet:size=140", "'right3_1': a window of 3 does not fit into 2"),
        ("sd15_unet:size=60", "no multiple of 8"),
        ("gpt2:heads=7", "7 heads do not divide a width of 768"),
        ("gpt2:tokens=2048", "give at most 1024 tokens"),
        ("moe_xs:tokens=2048", "give at most 1024 tokens"),
        ("mixtral_8x7b:heads=3", "3 heads do not divide a width of 4096"),
        ("mixtral_8x7b:top=9", "a token cannot go to 9 of 8 experts; give fewer"),
        ("mixtral_8x7b:capacity=401", "room for 2054 of 2048 tokens; give at most 400"),
        ("vgg", "'groups' is ''; give 5 numbers"),
        ("vgg:groups=1-2-3", "'groups' is '1-2-3'; give 5 numbers"),
        ("vgg:groups=1-2-3-4-0", "give 5 numbers of 1 to 9999"),
        ("vgg:groups=1-2-3-4-5,depth=3", "there is no parameter 'depth'; it takes groups"),
        ("resnet:blocks=1-1-1-1,basic=2", "'basic' is '2'; write 0 or 1"),
        ("resnet:blocks=1-1-1-1,blocks=1-1-1-1", "write every parameter once"),
        ("resnet:1-1-1-1", "'1-1-1-1' is wrong"),
    ],
)
def test_wrong_specifications_are_refused(spec, message):
    with pytest.raises(PebblerError, match=message):
        find_network(spec)
