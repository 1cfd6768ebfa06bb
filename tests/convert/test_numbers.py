"""A converted layer computes what the layer it comes from computes."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import functional_call

from relattn import OffsetTable, RelativeEncoding, ScoreTerms, T5Bias, TransformerXLEmbedding
from relattn.convert import FORMATS, layers, to_relattn
from relattn.positions.offsets import sinusoids
from relattn.positions.positions import Positions
from tests.convert import published
from tests.convert.cases import CASES, DIM, FURTHEST, HEADS, LENGTH, TERMS, TIED, WIDTH, B, Case
from tests.peers.compare import assert_same_numbers

pytest_plugins = ["tests.contract.fresh"]

Function = Callable[[dict[str, Tensor]], Tensor]


def ours(
    checkpoint: dict[str, Tensor],
    source: str,
    layer: str,
    encoding: Callable[[], RelativeEncoding] | None = None,
    **keywords: Any,
) -> Function:
    """The converted layer as a function of "x" (and "memory", which comes before it)."""
    module = layers(checkpoint, source, encoding)[layer.rstrip("./")]

    def function(a: dict[str, Tensor]) -> Tensor:
        module.to(a["x"].dtype)
        if "memory" not in a:
            return module(a["x"], **keywords)
        return module(a["x"], torch.cat([a["memory"], a["x"]], 1), query_position=a["memory"].shape[1], **keywords)

    return function


def theirs(checkpoint: dict[str, Tensor], case: Case, layer: str) -> Function:
    """The layer by its source."""

    def function(a: dict[str, Tensor]) -> Tensor:
        parameters = {local: checkpoint[name].to(a["x"].dtype) for local, name in case.names(layer).items()}
        return case.published(a["x"], parameters, **{name: one for name, one in a.items() if name != "x"})

    return function


def x() -> dict[str, Tensor]:
    return {"x": torch.randn(B, LENGTH, DIM)}


@pytest.mark.parametrize("name", CASES)
def test_every_layer_computes_what_it_did(name: str, rng: np.random.Generator) -> None:
    case = CASES[name]
    checkpoint = case.checkpoint()
    for layer in case.layers:
        peer = theirs(checkpoint, case, layer)
        assert_same_numbers(ours(checkpoint, case.source, layer, **case.keywords), peer, x(), TERMS)


def test_transfo_xl_with_a_memory_and_biases_for_all_layers(rng: np.random.Generator) -> None:
    checkpoint = TIED.checkpoint()
    layer = TIED.layers[1]
    inputs = x() | {"memory": torch.randn(B, 5, DIM)}
    assert_same_numbers(
        ours(checkpoint, "transfo_xl", layer, is_causal=True), theirs(checkpoint, TIED, layer), inputs, TERMS
    )


class Clamped(TransformerXLEmbedding):
    """As docs/convert.md has it."""

    clamp_len = 4

    def terms(self, query: Tensor, key: Tensor, positions: Positions) -> ScoreTerms:
        distances = np.arange(self.clamp_len, -1, -1)
        waves = torch.from_numpy(sinusoids(distances, self.embed_dim)).to(query)
        rows = self.linear_pos(waves).unflatten(-1, (self.num_heads, self.head_dim)).transpose(0, 1)
        return ScoreTerms(
            query=query + self.pos_bias_u.unsqueeze(1),
            relative_query=query + self.pos_bias_v.unsqueeze(1),
            relative_keys=OffsetTable(rows, -self.clamp_len, "clamp"),
        )


def test_transfo_xl_with_clamp_len(rng: np.random.Generator) -> None:
    """Ours has none; an encoding that has is given."""
    case = CASES["transfo_xl"]
    checkpoint, layer = case.checkpoint(), case.layers[0]
    clamped = replace(case, published=partial(published.transformer_xl, clamp_len=Clamped.clamp_len))
    converted = ours(checkpoint, "transfo_xl", layer, lambda: Clamped(HEADS, WIDTH), is_causal=True)
    assert_same_numbers(converted, theirs(checkpoint, clamped, layer), x(), TERMS)


def test_transfo_xl_s_own_biases_come_before_those_of_all(rng: np.random.Generator) -> None:
    """Transformers saves tied biases in both places."""
    case = CASES["transfo_xl"]
    checkpoint, layer = case.checkpoint(), case.layers[0]
    above = {f"transformer.{bias}": torch.ones(HEADS, WIDTH) for bias in ("r_w_bias", "r_r_bias")}
    converted = ours(checkpoint | above, "transfo_xl", layer, is_causal=True)
    assert_same_numbers(converted, theirs(checkpoint, case, layer), x(), TERMS)
    assert above.keys() <= to_relattn(checkpoint | above, "transfo_xl").keys()


SHAW = {"with_linear_pos": False, "with_pos_bias": False, "learnable_pos_emb": True, "separate_pos_emb_per_head": False}
REL_POS: dict[str, dict[str, Any]] = {
    "transformer_xl": {},
    "transformer_xl_no_bias": {"with_bias": False},
    "shaw": SHAW | {"learnable_pos_emb_clipping": FURTHEST},
}


def rel_pos(options: dict[str, Any], layer: str = "") -> dict[str, Tensor]:
    """The parameters of rf.RelPosSelfAttention without a projection."""
    found = {"qkv.weight": torch.randn(DIM, 3 * DIM) * DIM**-0.5}
    if options.get("with_bias", True):
        found["qkv.bias"] = torch.randn(3 * DIM)
    if "learnable_pos_emb" in options:
        found["learned_pos_emb.pos_emb"] = torch.randn(2 * FURTHEST + 1, WIDTH)
    else:
        found |= {f"pos_bias_{one}": torch.randn(HEADS, WIDTH) for one in "uv"}
        found["linear_pos.weight"] = torch.randn(DIM, DIM) * DIM**-0.5
    return {layer + name: tensor for name, tensor in found.items()}


@pytest.mark.parametrize("causal", [False, True], ids=["both directions", "causal"])
@pytest.mark.parametrize("variant", REL_POS)
def test_returnn_rel_pos(variant: str, causal: bool, rng: np.random.Generator) -> None:
    """Against RETURNN itself."""
    import returnn.frontend as rf

    from tests.peers.returnn_frontend import Module, function_of

    kind = rf.RelPosCausalSelfAttention if causal else rf.RelPosSelfAttention
    peer = function_of(kind, HEADS, WIDTH, REL_POS[variant], Module.whole)
    checkpoint = rel_pos(REL_POS[variant])

    def function(a: dict[str, Tensor]) -> Tensor:
        return peer(a | {name: tensor.to(a["x"].dtype) for name, tensor in checkpoint.items()})

    assert_same_numbers(ours(checkpoint, "returnn_rel_pos", "", is_causal=causal), function, x(), TERMS)


def test_returnn_rel_pos_with_a_projection(rng: np.random.Generator) -> None:
    """proj is one more matrix product, [in, out], after the layer without it."""
    alone = rel_pos({})
    projected = alone | {"proj.weight": torch.randn(DIM, DIM) * DIM**-0.5, "proj.bias": torch.randn(DIM)}
    before = ours(alone, "returnn_rel_pos", "")

    def function(a: dict[str, Tensor]) -> Tensor:
        return before(a) @ projected["proj.weight"].to(a["x"].dtype) + projected["proj.bias"].to(a["x"].dtype)

    assert_same_numbers(ours(projected, "returnn_rel_pos", ""), function, x(), TERMS)


@pytest.mark.parametrize("kv_heads", [6, 2, 1])
@pytest.mark.parametrize("causal", [False, True], ids=["Encoder", "Decoder"])
def test_x_transformers(causal: bool, kv_heads: int, rng: np.random.Generator) -> None:
    """Every attention layer of a stack, as x-transformers makes it, with shared keys and values too."""
    from x_transformers import Decoder, Encoder

    heads, buckets = 6, 8
    stack = (Decoder if causal else Encoder)(
        dim=DIM, depth=2, heads=heads, attn_dim_head=WIDTH, attn_kv_heads=kv_heads, rel_pos_bias=True,
        rel_pos_num_buckets=buckets, rel_pos_max_distance=10,
    )  # fmt: skip
    checkpoint = {f"attn_layers.{name}": torch.randn_like(one) * DIM**-0.5 for name, one in stack.state_dict().items()}

    def encoding() -> T5Bias:
        return T5Bias(heads, num_buckets=buckets, max_distance=10, bidirectional=not causal)

    for number in (0, 2):

        def peer(a: dict[str, Tensor], number: int = number) -> Tensor:
            weights = {name.removeprefix("attn_layers."): one.to(a["x"].dtype) for name, one in checkpoint.items()}
            layer = stack.layers[number][1]
            bias = partial(functional_call, stack.rel_pos, {
                "relative_attention_bias.weight": weights["rel_pos.relative_attention_bias.weight"]
            })  # fmt: skip
            own = {name: weights[f"layers.{number}.1.{name}"] for name, _ in layer.named_parameters()}
            return functional_call(layer, own, (a["x"],), {"rel_pos": lambda i, j: bias((i, j))})

        converted = ours(checkpoint, "x_transformers_t5", f"attn_layers.layers.{number}.1", encoding, is_causal=causal)
        assert_same_numbers(converted, peer, x(), TERMS)


def flipped(name: str) -> Callable[[dict[str, Tensor]], dict[str, Tensor]]:
    return lambda p: p | {name: p[name].flip(-2)}


def shifted(name: str) -> Callable[[dict[str, Tensor]], dict[str, Tensor]]:
    return lambda p: p | {name: p[name].roll(1, -2)}


def minus_sines(p: dict[str, Tensor]) -> dict[str, Tensor]:
    sines, cosines = p["r_net.weight"].chunk(2, dim=1)
    return p | {"r_net.weight": torch.cat([-sines, cosines], dim=1)}


WRONG: dict[str, tuple[str, Callable[[dict[str, Tensor]], dict[str, Tensor]]]] = {
    "BERT's rows the other way round": ("bert_relative_key", flipped("self.distance_embedding.weight")),
    "BERT's rows one off": ("bert_relative_key_query", shifted("self.distance_embedding.weight")),
    "u for v": ("transfo_xl", lambda p: p | {"r_w_bias": p["r_r_bias"], "r_r_bias": p["r_w_bias"]}),
    "sines of the other sign": ("transfo_xl", minus_sines),
    "Shaw's rows the other way round": ("t2t_shaw", flipped(next(iter(CASES["t2t_shaw"].parameters)))),
    "the Music Transformer's rows the other way round": (
        "t2t_masked", flipped("dot_product_self_attention_relative_v2/key_relative_embeddings"),
    ),
    "a kernel not transposed": ("t2t_unmasked", lambda p: p | {"q/kernel": p["q/kernel"].T}),
    "RETURNN's heads not interleaved": (
        "returnn_key_shift",
        lambda p: p | {"QKV": p["QKV"].unflatten(1, (HEADS, 3, WIDTH)).transpose(1, 2).flatten(1)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", WRONG)
def test_a_wrong_conversion_is_found_out(mistake: str, rng: np.random.Generator) -> None:
    name, spoil = WRONG[mistake]
    case = CASES[name]
    checkpoint = case.checkpoint()
    layer = case.layers[0]
    spoilt = spoil({local: checkpoint[name] for local, name in case.names(layer).items()})
    wrong = checkpoint | {case.names(layer)[local]: tensor for local, tensor in spoilt.items()}
    converted = ours(wrong, case.source, layer, **case.keywords)
    with pytest.raises(AssertionError, match="output"):
        assert_same_numbers(converted, theirs(checkpoint, case, layer), x(), TERMS)


def test_the_two_of_bert_are_told_apart_by_name_only(rng: np.random.Generator) -> None:
    case = CASES["bert_relative_key_query"]
    checkpoint, layer = case.checkpoint(), case.layers[0]
    with pytest.raises(AssertionError, match="output"):
        assert_same_numbers(ours(checkpoint, "bert_relative_key", layer), theirs(checkpoint, case, layer), x(), TERMS)


def test_every_format_is_compared() -> None:
    assert {case.source for case in CASES.values()} | {"returnn_rel_pos", "x_transformers_t5"} == set(FORMATS)
