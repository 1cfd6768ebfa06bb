"""RETURNN 1.20261022.211313, its frontend on PyTorch: `rf.RelPosSelfAttention` and its causal sister, beside ours.

Both score  1/sqrt(D) * ((q_i + u) . k_j + (q_i + v) . p_ij),  u and v being pos_bias_u and pos_bias_v, and p_ij

in Transformer-XL's way, the default    W R[j - i], with sinusoids of j - i where the paper has i - j. A sine is odd:
                                        ours is TransformerXLEmbedding with the sine columns of W, its first half,
                                        negated
with `learnable_pos_emb`                `rf.LearnedRelativePositionalEncoding`: a row of pos_emb for each offset j - i,
                                        clipped to -c .. c, which W projects where `with_linear_pos`. Without u and v
                                        (`with_pos_bias`) ours is ShawEmbedding(c, values=False), with them ScoreTerms
                                        of q + u, q + v and OffsetTable(rows, -c, "clamp")

qkv holds for each head its query, key and value, one after the other; weights are [in, out]. The causal one continues
from a state: with single tokens rightly, with chunks wrongly from the second on.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import returnn.frontend as rf
import torch
from torch import Tensor, nn
from torch.func import functional_call

from relattn import (
    OffsetTable,
    RelativeEncoding,
    ScoreTerms,
    ShawEmbedding,
    TransformerXLEmbedding,
    relative_attention,
)
from relattn.nn import KVCache, RelativeMultiheadAttention
from tests.oracle import ORACLES
from tests.oracle.cases import CLOSE
from tests.peers.compare import assert_same_numbers, longest_sum
from tests.peers.returnn_frontend import Module, function_of

pytest_plugins = ["tests.contract.fresh"]

B, LENGTH, DIM, HEADS, WIDTH, CLIP = 2, 7, 12, 3, 4, 2
TERMS = longest_sum(B, LENGTH, LENGTH, DIM, WIDTH)

# How RelPosSelfAttention's docstring asks for Shaw et al. 2018.
SHAW = {"with_linear_pos": False, "with_pos_bias": False, "learnable_pos_emb": True, "separate_pos_emb_per_head": False}
LEARNED = {"learnable_pos_emb": True, "learnable_pos_emb_clipping": CLIP}
VARIANTS: dict[str, dict[str, Any]] = {
    "transformer_xl": {},
    "shaw": LEARNED | SHAW,
    "learned_per_head_with_biases": LEARNED | {"with_linear_pos": False},
    "learned_projected": LEARNED,
}


def run_peer(
    kind: type[rf.Module], variant: str, run: Callable[[Module, Tensor], Tensor]
) -> Callable[[dict[str, Tensor]], Tensor]:
    """One of RETURNN's modules in a variant, as `run` calls it."""
    return function_of(kind, HEADS, WIDTH, VARIANTS[variant], run)


class Attend(nn.Module):
    """relative_attention under an encoding whose parameters `functional_call` can give."""

    def __init__(self, encoding: RelativeEncoding) -> None:
        super().__init__()
        self.encoding = encoding

    def forward(self, *tensors: Tensor, **keywords: Any) -> Tensor:
        return relative_attention(*tensors, encoding=self.encoding, **keywords)


def project(leaves: dict[str, Tensor]) -> list[Tensor]:
    """Query, key and value [B, HEADS, L, WIDTH] of x: for each head one after the other in qkv."""
    qkv = leaves["x"] @ leaves["qkv.weight"] + leaves["qkv.bias"]
    return list(qkv.unflatten(-1, (HEADS, 3 * WIDTH)).transpose(1, 2).split(WIDTH, dim=-1))


def minus_sines(weight: Tensor) -> Tensor:
    """W [out, in] for sinusoids of i - j, from W [in, out] for those of j - i: the sines, the first half, negated."""
    half = weight.shape[0] // 2
    return torch.cat([-weight[:half], weight[half:]]).T


def ours(variant: str, leaves: dict[str, Tensor], **keywords: Any) -> Tensor:
    """The same attention by relattn, [B, L, HEADS * WIDTH]."""
    query, key, value = project(leaves)
    if variant == "transformer_xl":
        own = {name: leaves[name] for name in ("pos_bias_u", "pos_bias_v")}
        own["linear_pos.weight"] = minus_sines(leaves["linear_pos.weight"])
        attend = Attend(TransformerXLEmbedding(HEADS, WIDTH))
    elif variant == "shaw":
        own = {"relative_keys": leaves["learned_pos_emb.pos_emb"][None]}
        attend = Attend(ShawEmbedding(WIDTH, CLIP, values=False))
    else:
        rows = leaves["learned_pos_emb.pos_emb"]
        rows = rows @ leaves["linear_pos.weight"] if variant == "learned_projected" else rows
        table = OffsetTable(rows.unflatten(-1, (HEADS, WIDTH)).transpose(0, 1), -CLIP, "clamp")
        u, v = leaves["pos_bias_u"].unsqueeze(1), leaves["pos_bias_v"].unsqueeze(1)
        terms = ScoreTerms(query=query + u, relative_query=query + v, relative_keys=table)
        return relative_attention(query, key, value, encoding=terms, **keywords).transpose(1, 2).flatten(2)
    own = {f"encoding.{name}": tensor for name, tensor in own.items()}
    return functional_call(attend, own, (query, key, value), keywords).transpose(1, 2).flatten(2)


def arrays(variant: str) -> dict[str, Tensor]:
    """x and the parameters, such that scores are of size 1."""
    total = HEADS * WIDTH
    found = {"x": torch.randn(B, LENGTH, DIM), "qkv.weight": torch.randn(DIM, 3 * total) * DIM**-0.5}
    found["qkv.bias"] = torch.randn(3 * total)
    options = VARIANTS[variant]
    if options.get("with_pos_bias", True):
        found |= {f"pos_bias_{one}": torch.randn(HEADS, WIDTH) for one in "uv"}
    width = WIDTH if not options.get("separate_pos_emb_per_head", True) else total
    if options.get("with_linear_pos", True):
        found["linear_pos.weight"] = torch.randn(DIM, width) * DIM**-0.5
        width = DIM
    if "learnable_pos_emb" in options:
        found["learned_pos_emb.pos_emb"] = torch.randn(2 * CLIP + 1, width)
    return found


every_variant = pytest.mark.parametrize("variant", VARIANTS)


@every_variant
def test_rel_pos_self_attention(variant: str, rng: np.random.Generator) -> None:
    peer = run_peer(rf.RelPosSelfAttention, variant, Module.whole)
    assert_same_numbers(partial(ours, variant), peer, arrays(variant), TERMS)


@pytest.mark.one_in(4)
@every_variant
def test_rel_pos_self_attention_of_padded_sequences(variant: str, rng: np.random.Generator) -> None:
    """The second sequence ends three frames early; what stands behind its end is nobody's answer."""
    lengths = [LENGTH, LENGTH - 3]
    kept = torch.arange(LENGTH) < torch.tensor(lengths)[:, None]

    def frames(output: Tensor) -> Tensor:
        return output.masked_fill(~kept.unsqueeze(-1), 0.0)

    peer = run_peer(rf.RelPosSelfAttention, variant, lambda module, x: frames(module.whole(x, lengths)))
    assert_same_numbers(lambda a: frames(ours(variant, a, key_mask=kept)), peer, arrays(variant), TERMS)


@pytest.mark.one_in(4)
@every_variant
def test_rel_pos_causal_self_attention(variant: str, rng: np.random.Generator) -> None:
    peer = run_peer(rf.RelPosCausalSelfAttention, variant, Module.whole)
    assert_same_numbers(partial(ours, variant, is_causal=True), peer, arrays(variant), TERMS)


@pytest.mark.one_in(4)
@every_variant
@pytest.mark.parametrize(
    "chunks",
    [
        pytest.param([4, 1, 1, 1], id="after a prompt"),
        pytest.param([1] * LENGTH, id="from nothing", marks=pytest.mark.slow),
    ],
)
def test_single_steps_through_its_state(chunks: list[int], variant: str, rng: np.random.Generator) -> None:
    """Token by token it gives what ours gives of the whole."""
    peer = run_peer(rf.RelPosCausalSelfAttention, variant, partial(Module.stream, chunks=chunks))
    assert_same_numbers(partial(ours, variant, is_causal=True), peer, arrays(variant), TERMS)


def through_our_cache(variant: str, a: dict[str, Tensor], chunks: list[int]) -> Tensor:
    """Our module with a KVCache, fed the same chunks."""
    if variant == "shaw":
        encoding, own = ShawEmbedding(WIDTH, CLIP, values=False), {"relative_keys": a["learned_pos_emb.pos_emb"][None]}
    else:
        encoding = TransformerXLEmbedding(HEADS, WIDTH)
        own = {name: a[name] for name in ("pos_bias_u", "pos_bias_v")}
        own["linear_pos.weight"] = minus_sines(a["linear_pos.weight"])
    attention = RelativeMultiheadAttention(DIM, HEADS, encoding).double()
    with torch.no_grad():
        for name, tensor in own.items():
            encoding.get_parameter(name).copy_(tensor)
        weights = a["qkv.weight"].unflatten(1, (HEADS, 3, WIDTH)), a["qkv.bias"].unflatten(0, (HEADS, 3, WIDTH))
        for i, projection in enumerate((attention.q_proj, attention.k_proj, attention.v_proj)):
            projection.weight.copy_(weights[0][:, :, i].flatten(1).T)
            projection.bias.copy_(weights[1][:, i].flatten())
        attention.out_proj.weight.copy_(torch.eye(DIM))
        attention.out_proj.bias.zero_()
        cache = KVCache()
        return torch.cat([attention(x, is_causal=True, cache=cache) for x in a["x"].split(chunks, dim=1)], dim=1)


def oracle(variant: str, a: dict[str, Tensor], queries: slice = slice(None), **keywords: Any) -> np.ndarray:
    """The paper's formula for some of the queries [B, L, HEADS * WIDTH]."""
    query, key, value = (tensor.numpy() for tensor in project(a))
    inputs = query[:, :, queries], key, value
    if variant == "shaw":
        tables = {"relative_keys": a["learned_pos_emb.pos_emb"][None].numpy()}
        answer = ORACLES["shaw"](inputs, tables, max_distance=CLIP, **keywords)
    else:
        parameters = {name: a[name].numpy() for name in ("pos_bias_u", "pos_bias_v")}
        parameters["linear_pos.weight"] = minus_sines(a["linear_pos.weight"]).numpy()
        answer = ORACLES["transformer_xl"](inputs, parameters, **keywords)
    return answer.output.transpose(0, 2, 1, 3).reshape(B, -1, HEADS * WIDTH)


@pytest.mark.parametrize("variant", ["transformer_xl", "shaw"])
def test_its_second_chunk_with_a_state_forgets_its_query_offset(variant: str, rng: np.random.Generator) -> None:
    """Four frames, then three: `relative_positional_encoding` is asked for queries from 0 on, not from 4 on.

    What it then gives is the formula with those queries at positions 0, 1, 2, behind a mask that is right. Ours is the
    oracle's.
    """
    a = {name: tensor.double() for name, tensor in arrays(variant).items()}
    whole, chunks = slice(0, LENGTH), [4, 3]
    truth = oracle(variant, a, whole, is_causal=True)
    np.testing.assert_allclose(through_our_cache(variant, a, chunks), truth, **CLOSE)

    theirs = run_peer(rf.RelPosCausalSelfAttention, variant, partial(Module.stream, chunks=chunks))(a).numpy()
    np.testing.assert_allclose(theirs[:, :4], truth[:, :4], **CLOSE)
    assert np.abs(theirs[:, 4:] - truth[:, 4:]).max() > 0.1
    seen = np.tril(np.ones((1, 1, 3, LENGTH), dtype=bool), 4)
    forgotten = oracle(variant, a, slice(4, None), query_position=0, attn_mask=seen)
    np.testing.assert_allclose(theirs[:, 4:], forgotten, **CLOSE)
