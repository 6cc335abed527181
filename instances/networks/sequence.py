"""Networks on sequences: an unrolled LSTM and transformers."""

from __future__ import annotations

from functools import partial

from ..errors import PebblerError
from .builder import NetworkBuilder
from .entry import Entry, flag, number
from .network import Shape

_GPT2 = "Radford et al. 2019, without dropout; math=1 stores the attention's scores"


def _lstm(
    net: NetworkBuilder,
    steps: int = 512,
    layers: int = 4,
    width: int = 1024,
    inputs: int = 50,
    labels: int = 5000,
) -> None:
    """Every step has a task of its own; all steps of a layer have its weights."""
    hidden = [net.input(width, 1, 1, name=f"h{k}_0") for k in range(1, layers + 1)]
    state = [net.input(width, 1, 1, name=f"c{k}_0") for k in range(1, layers + 1)]
    for t in range(1, steps + 1):

        def tied(name: str, t: int = t) -> str | None:
            return f"{name}_1" if t > 1 else None

        x = net.input(inputs, 1, 1, name=f"x_{t}")
        x = net.fc(f"embed_{t}", x, width, tied=tied("embed"))
        for k in range(layers):
            name = f"lstm{k + 1}"
            gates = net.linear(
                f"{name}_gates_{t}", x, hidden[k], outputs=4 * width, tied=tied(f"{name}_gates")
            )
            state[k] = net.lstm_cell(f"{name}_c_{t}", gates, state[k])
            x = hidden[k] = net.lstm_hidden(f"{name}_h_{t}", gates, state[k])
        net.softmax(f"loss_{t}", net.fc(f"labels_{t}", x, labels, tied=tied("labels")))


def _gpt2(
    net: NetworkBuilder,
    layers: int = 12,
    width: int = 768,
    heads: int = 12,
    tokens: int = 1024,
    vocabulary: int = 50257,
    math: bool = False,
) -> None:
    require_heads("GPT-2", width, heads)
    x = gpt2_embedding(net, tokens, vocabulary, width)
    for k in range(layers):
        name = f"h{k}"
        x = gpt2_attention(net, name, x, heads, math=math)
        y = net.linear(f"{name}_fc", net.layer_norm(f"{name}_ln2", x), outputs=4 * width)
        y = net.linear(f"{name}_out", net.gelu(f"{name}_gelu", y), outputs=width)
        x = net.add(f"{name}_add2", x, y)
    x = net.layer_norm("ln_f", x)
    net.softmax("loss", net.linear("lm_head", x, outputs=vocabulary, bias=False, tied="wte"))


def gpt2_embedding(net: NetworkBuilder, tokens: int, vocabulary: int, width: int) -> str:
    """Add the sum of a table of words, ``wte``, and one of GPT-2's 1024 positions."""
    if tokens > 1024:
        raise PebblerError(f"GPT-2 has 1024 positions, fewer than {tokens}; give at most 1024 tokens")
    x = net.embedding("wte", net.input(1, tokens, 1), vocabulary, width)
    return net.add(
        "embedded", x, net.embedding("wpe", net.input(1, tokens, 1, name="positions"), 1024, width)
    )


def gpt2_attention(net: NetworkBuilder, name: str, x: str, heads: int, *, math: bool = False) -> str:
    """Add the first half of a layer of GPT-2: norm, attention, its projection and the sum with what came."""
    width = net.shape(x).channels
    y = net.layer_norm(f"{name}_ln1", x)
    if math:
        q, key, v = (net.linear(f"{name}_{role}", y, outputs=width) for role in ("q", "k", "v"))
        y = net.rowsoftmax(f"{name}_softmax", net.scores(f"{name}_scores", q, key, heads=heads))
        y = net.context(f"{name}_context", y, v)
    else:
        y = net.linear(f"{name}_qkv", y, outputs=3 * width)
        y = net.attention(f"{name}_attn", y, heads=heads, causal=True)
    return net.add(f"{name}_add1", x, net.linear(f"{name}_proj", y, outputs=width))


def _llama(
    net: NetworkBuilder,
    layers: int = 16,
    width: int = 2048,
    heads: int = 32,
    groups: int = 8,
    hidden: int = 8192,
    tokens: int = 2048,
    vocabulary: int = 128256,
) -> None:
    require_heads("Llama", width, heads)
    x = net.embedding("embed", net.input(1, tokens, 1), vocabulary, width)
    for k in range(layers):
        x = _llama_layer(net, f"layer{k}", x, heads, groups, hidden)
    x = net.rms_norm("norm", x)
    net.softmax("loss", net.linear("lm_head", x, outputs=vocabulary, bias=False, tied="embed"))


def _llama_block(
    net: NetworkBuilder,
    width: int = 4096,
    heads: int = 32,
    groups: int = 8,
    hidden: int = 14336,
    tokens: int = 2048,
) -> None:
    """One decoder block between an input and a squared error, as in training block by block."""
    require_heads("a Llama block", width, heads)
    x = _llama_layer(net, "layer", net.input(width, tokens, 1), heads, groups, hidden)
    net.loss("loss", x, net.input(width, tokens, 1, name="target"))


def _llama_layer(net: NetworkBuilder, name: str, x: str, heads: int, groups: int, hidden: int) -> str:
    """Grouped-query attention with rotary positions, then a gated MLP."""
    width = net.shape(x).channels
    x = llama_attention(net, name, x, heads, groups)
    y = net.rms_norm(f"{name}_norm2", x)
    gate = net.silu(f"{name}_silu", net.linear(f"{name}_gate", y, outputs=hidden, bias=False))
    y = net.multiply(f"{name}_gated", gate, net.linear(f"{name}_up", y, outputs=hidden, bias=False))
    return net.add(f"{name}_add2", x, net.linear(f"{name}_down", y, outputs=width, bias=False))


def llama_attention(net: NetworkBuilder, name: str, x: str, heads: int, groups: int) -> str:
    """Add the first half of a layer of Llama: norm, attention, its projection and the sum with what came."""
    width = net.shape(x).channels
    keys = width // heads * groups
    y = net.rms_norm(f"{name}_norm1", x)
    q = net.linear(f"{name}_q", y, outputs=width, bias=False)
    k = net.linear(f"{name}_k", y, outputs=keys, bias=False)
    v = net.linear(f"{name}_v", y, outputs=keys, bias=False)
    q, k = (net.resample(f"{part}_rotated", part, net.shape(part)) for part in (q, k))
    y = net.attention(f"{name}_attn", q, k, v, heads=heads, groups=groups, causal=True)
    return net.add(f"{name}_add1", x, net.linear(f"{name}_o", y, outputs=width, bias=False))


def _vit(
    net: NetworkBuilder,
    layers: int = 12,
    width: int = 768,
    heads: int = 12,
    patch: int = 16,
    size: int = 224,
) -> None:
    require_heads("ViT", width, heads)
    x = net.conv("patches", net.input(3, size, size), width, patch, stride=patch)
    x = net.position("position", x, extra=1)
    for k in range(layers):
        name = f"block{k}"
        y = net.linear(f"{name}_qkv", net.layer_norm(f"{name}_norm1", x), outputs=3 * width)
        y = net.attention(f"{name}_attn", y, heads=heads)
        x = net.add(f"{name}_add1", x, net.linear(f"{name}_proj", y, outputs=width))
        y = net.linear(f"{name}_fc1", net.layer_norm(f"{name}_norm2", x), outputs=4 * width)
        y = net.linear(f"{name}_fc2", net.gelu(f"{name}_gelu", y), outputs=width)
        x = net.add(f"{name}_add2", x, y)
    x = net.resample("class_token", net.layer_norm("norm", x), Shape(width, 1, 1))
    net.softmax("loss", net.fc("head", x, 1000))


def require_heads(what: str, width: int, heads: int) -> None:
    """Refuse heads that do not divide the width."""
    if width % heads:
        raise PebblerError(f"{what}: {heads} heads do not divide a width of {width}; give a divisor")


_SHAPE = {"layers": number, "width": number, "heads": number}
_TEXT = {**_SHAPE, "tokens": number, "vocabulary": number}
_LLAMA = {"width": number, "heads": number, "groups": number, "hidden": number, "tokens": number}
_IMAGE = {**_SHAPE, "patch": number, "size": number}
SEQUENCE: dict[str, Entry] = {
    "lstm_rnn": Entry(
        _lstm,
        64,
        "Layrub (TACO 2018), Table 1 and Fig. 11: 4 x 1024, unrolled over 512 steps",
        {"steps": number, "layers": number, "width": number, "inputs": number, "labels": number},
    ),
    "gpt2": Entry(_gpt2, 8, _GPT2, {**_TEXT, "math": flag}),
    "gpt2_medium": Entry(partial(_gpt2, layers=24, width=1024, heads=16), 4, _GPT2, {**_TEXT, "math": flag}),
    "gpt2_xl": Entry(partial(_gpt2, layers=48, width=1600, heads=25), 1, _GPT2, {**_TEXT, "math": flag}),
    "llama32_1b": Entry(
        _llama, 1, "Grattafiori et al. 2024, Llama 3.2 1B", {"layers": number, "vocabulary": number, **_LLAMA}
    ),
    "llama_block": Entry(
        _llama_block, 4, "Grattafiori et al. 2024, one decoder block of Llama 3 8B alone", _LLAMA
    ),
    "vit_b16": Entry(_vit, 128, "Dosovitskiy et al. 2021, ViT-B/16, without dropout", _IMAGE),
    "vit_l16": Entry(
        partial(_vit, layers=24, width=1024, heads=16),
        64,
        "Dosovitskiy et al. 2021, ViT-L/16, without dropout",
        _IMAGE,
    ),
}
