"""Transformers whose perceptrons are mixtures of experts, with routing that loads all experts alike.

Which experts a token goes to depends on the data. An instance has fixed sizes, so each expert gets its
capacity: an equal part of what all tokens ask for, times a capacity factor (Lepikhin et al. 2021, GShard,
section 2.2; Fedus et al. 2022, Switch Transformers, equation 3). Tokens of a sequence share it. Losses that
balance the load, and noise, are left out.
"""

from __future__ import annotations

from functools import partial

from ..errors import PebblerError
from .builder import NetworkBuilder
from .entry import Entry, number
from .sequence import gpt2_attention, gpt2_embedding, llama_attention, require_heads

_MIXTRAL = "Jiang et al. 2024, Mixtral 8x7B"
_SWITCH = "Gale et al. 2023 (MegaBlocks), Table 2: GPT-2 with the layers of Switch Transformers"


def _mixtral(
    net: NetworkBuilder,
    layers: int = 32,
    width: int = 4096,
    heads: int = 32,
    groups: int = 8,
    hidden: int = 14336,
    tokens: int = 2048,
    vocabulary: int = 32000,
    experts: int = 8,
    top: int = 2,
    capacity: int = 100,
) -> None:
    require_heads("Mixtral", width, heads)
    slots = _slots("Mixtral", tokens, experts, top, capacity)
    x = net.embedding("embed", net.input(1, tokens, 1), vocabulary, width)
    for k in range(layers):
        name = f"layer{k}"
        x = llama_attention(net, name, x, heads, groups)
        y = net.rms_norm(f"{name}_norm2", x)
        shares, y = _dispatched(net, name, y, experts, slots)
        gate = net.silu(f"{name}_silu", net.experts(f"{name}_gate", y, outputs=hidden, experts=experts))
        up = net.experts(f"{name}_up", y, outputs=hidden, experts=experts)
        y = net.multiply(f"{name}_gated", gate, up)
        y = net.experts(f"{name}_down", y, outputs=width, experts=experts)
        x = net.add(f"{name}_add2", x, net.combine(f"{name}_combine", y, shares))
    x = net.rms_norm("norm", x)
    net.softmax("loss", net.linear("lm_head", x, outputs=vocabulary, bias=False))


def _switch(
    net: NetworkBuilder,
    layers: int = 12,
    width: int = 768,
    heads: int = 12,
    tokens: int = 1024,
    vocabulary: int = 51200,
    experts: int = 64,
    top: int = 1,
    capacity: int = 100,
) -> None:
    require_heads("this GPT-2", width, heads)
    slots = _slots("this GPT-2", tokens, experts, top, capacity)
    x = gpt2_embedding(net, tokens, vocabulary, width)
    for k in range(layers):
        name = f"h{k}"
        x = gpt2_attention(net, name, x, heads)
        y = net.layer_norm(f"{name}_ln2", x)
        shares, y = _dispatched(net, name, y, experts, slots)
        y = net.gelu(f"{name}_gelu", net.experts(f"{name}_fc", y, outputs=4 * width, experts=experts))
        y = net.experts(f"{name}_out", y, outputs=width, experts=experts)
        x = net.add(f"{name}_add2", x, net.combine(f"{name}_combine", y, shares))
    x = net.layer_norm("ln_f", x)
    net.softmax("loss", net.linear("lm_head", x, outputs=vocabulary, bias=False, tied="wte"))


def _dispatched(net: NetworkBuilder, name: str, x: str, experts: int, slots: int) -> tuple[str, str]:
    """Add a router and what it sends to the experts; return its shares, and that."""
    shares = net.route(f"{name}_route", net.linear(f"{name}_router", x, outputs=experts, bias=False))
    return shares, net.dispatch(f"{name}_dispatch", x, shares, slots=slots)


def _slots(what: str, tokens: int, experts: int, top: int, capacity: int) -> int:
    """Return the tokens of a sequence that an expert has room for; the capacity is in percent."""
    if top > experts:
        raise PebblerError(f"{what}: a token cannot go to {top} of {experts} experts; give fewer (top)")
    slots = -(-tokens * top * capacity // (100 * experts))
    if slots > tokens:
        raise PebblerError(
            f"{what}: with a capacity of {capacity} %, an expert has room for {slots} of {tokens} tokens; "
            f"give at most {100 * experts // top}"
        )
    return slots


_SHAPE = {"layers": number, "width": number, "heads": number, "tokens": number, "vocabulary": number}
_ROUTING = {"experts": number, "top": number, "capacity": number}
MIXTURE: dict[str, Entry] = {
    "mixtral_8x7b": Entry(_mixtral, 1, _MIXTRAL, {**_SHAPE, "groups": number, "hidden": number, **_ROUTING}),
    "moe_xs": Entry(partial(_switch, layers=6, width=512, heads=8), 8, _SWITCH, {**_SHAPE, **_ROUTING}),
    "moe_small": Entry(_switch, 4, _SWITCH, {**_SHAPE, **_ROUTING}),
    "moe_medium": Entry(
        partial(_switch, layers=24, width=1024, heads=16), 2, _SWITCH, {**_SHAPE, **_ROUTING}
    ),
}
