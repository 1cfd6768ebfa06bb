"""x-transformers 2.31.10: a whole `Attention` layer under each of its relative encodings, beside ours.

`RelativePositionBias`      T5's. Ours is T5Bias(bidirectional=not causal) whose bias is scale times its embedding. Its
                            own layers pass scale = sqrt(dim_head), while q . k is multiplied by 1 / sqrt(dim_head)
                            here as there: the bias is that much larger than T5's
`AlibiPositionalBias`       AlibiBias, for any number of heads (total_heads > heads, some without a slope, is not ours)
`RotaryEmbedding`           RotaryEmbedding(rotary_dim=dim, interleaved=True): neighbours are pairs, features from dim
                            on stay; interpolation_factor is the factor of scaling "linear"; xpos is nothing of ours
`RelativeProjPositionalBias`  Inkling's r_i . RK[d], not scaled: r = W x + w, RK[d] = distance_bank[:, -d] for the past
                            nearer than max_dist, zero elsewhere. Ours is ScoreTerms, relative_query = r / scale,
                            beyond="zero"

`mem` holds earlier tokens, which are keys only: query_position is their number. Nothing else of its Attention is on.
"""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import functional_call
from x_transformers.x_transformers import (
    AlibiPositionalBias,
    Attention,
    RelativePositionBias,
    RelativeProjPositionalBias,
)
from x_transformers.x_transformers import RotaryEmbedding as TheirRotary

from relattn import AlibiBias, OffsetTable, RelativeEncoding, RotaryEmbedding, ScoreTerms, T5Bias, relative_attention
from relattn.nn import RelativeMultiheadAttention
from relattn.positions.offsets import alibi_slopes
from tests.peers.compare import assert_same_numbers, longest_sum

pytest_plugins = ["tests.contract.fresh"]

B, LENGTH, MEMORY, DIM, HEADS, WIDTH = 2, 7, 30, 10, 3, 8
PROJECTIONS = {"q_proj": "to_q", "k_proj": "to_k", "v_proj": "to_v", "out_proj": "to_out"}
TERMS = longest_sum(B, LENGTH, MEMORY + LENGTH, DIM, WIDTH)
causality = pytest.mark.parametrize("causal", [False, True], ids=["both directions", "causal"])


def arrays(heads: int = HEADS, **own: tuple[int, ...]) -> dict[str, Tensor]:
    """Tokens, those before them, the projections by their names, and parameters of these shapes."""
    inner = heads * WIDTH
    shapes = {"x": (B, LENGTH, DIM), "mem": (B, MEMORY, DIM), **own}
    weights = {f"{name}.weight": torch.randn(inner, DIM) * DIM**-0.5 for name in ("to_q", "to_k", "to_v")}
    weights["to_out.weight"] = torch.randn(DIM, inner) * inner**-0.5
    return {name: torch.randn(shape) for name, shape in shapes.items()} | weights


def run_peer(a: dict[str, Tensor], causal: bool, heads: int = HEADS, **position: Any) -> Tensor:
    """Their layer with these weights; position: what it takes of an encoding."""
    layer = Attention(DIM, dim_head=WIDTH, heads=heads, causal=causal)
    weights = {name: a[name] for name, _ in layer.named_parameters()}
    return functional_call(layer, weights, (a["x"],), {"mem": a["mem"], **position})


def run_ours(
    a: dict[str, Tensor], encoding: RelativeEncoding, causal: bool, heads: int = HEADS, **own: Tensor
) -> Tensor:
    """Our layer with the same weights; own: the encoding's parameters."""
    layer = RelativeMultiheadAttention(DIM, heads, encoding, head_dim=WIDTH, bias=False)
    weights = {f"{ours}.weight": a[f"{theirs}.weight"] for ours, theirs in PROJECTIONS.items()}
    weights |= {f"encoding.{name}": tensor for name, tensor in own.items()}
    keys = torch.cat([a["mem"], a["x"]], dim=1)
    return functional_call(layer, weights, (a["x"], keys, keys), {"query_position": MEMORY, "is_causal": causal})


@causality
def test_relative_position_bias(causal: bool, rng: np.random.Generator) -> None:
    """Up to its last bucket."""
    buckets, furthest = 12, 20

    def peer(a: dict[str, Tensor]) -> Tensor:
        bias = RelativePositionBias(WIDTH**0.5, causal, buckets, furthest, HEADS)
        embedding = {"relative_attention_bias.weight": a["embedding"]}
        return run_peer(a, causal, rel_pos=lambda *lengths: functional_call(bias, embedding, lengths))

    def ours(a: dict[str, Tensor]) -> Tensor:
        encoding = T5Bias(HEADS, num_buckets=buckets, max_distance=furthest, bidirectional=not causal)
        return run_ours(a, encoding, causal, bias=a["embedding"] * WIDTH**0.5)

    assert_same_numbers(ours, peer, arrays(embedding=(buckets, HEADS)), TERMS)


@pytest.mark.one_in(3)
@causality
@pytest.mark.parametrize("heads", [2, 3, 12])
def test_alibi_positional_bias(heads: int, causal: bool, rng: np.random.Generator) -> None:
    def peer(a: dict[str, Tensor]) -> Tensor:
        return run_peer(a, causal, heads, rel_pos=AlibiPositionalBias(heads))

    def ours(a: dict[str, Tensor]) -> Tensor:
        return run_ours(a, AlibiBias(heads), causal, heads)

    assert_same_numbers(ours, peer, arrays(heads), TERMS)


def test_alibi_slopes() -> None:
    """For every number of heads, but for the rounding to float32."""
    for heads in range(1, 65):
        theirs = AlibiPositionalBias(heads).slopes.flatten().double()
        torch.testing.assert_close(theirs, torch.from_numpy(alibi_slopes(heads)), rtol=2.0**-23, atol=0.0)


@pytest.mark.one_in(3)
@causality
@pytest.mark.parametrize(("dim", "factor"), [(WIDTH, 1.0), (4, 1.0), (WIDTH, 3.0)])
def test_rotary_embedding(dim: int, factor: float, causal: bool, rng: np.random.Generator) -> None:
    """Whole, partial and interpolated. Position 0 is the first token of x there, and the first of the memory here."""

    def peer(a: dict[str, Tensor]) -> Tensor:
        angles = TheirRotary(dim, interpolation_factor=factor)(torch.arange(MEMORY + LENGTH) - MEMORY)
        return run_peer(a, causal, rotary_pos_emb=angles)

    def ours(a: dict[str, Tensor]) -> Tensor:
        scaling = None if factor == 1.0 else {"rope_type": "linear", "factor": factor}
        return run_ours(a, RotaryEmbedding(WIDTH, rotary_dim=dim, interleaved=True, scaling=scaling), causal)

    assert_same_numbers(ours, peer, arrays(), TERMS)


def test_relative_projected_positional_bias(rng: np.random.Generator) -> None:
    """What is further than max_dist, or lies ahead, adds nothing."""
    basis, furthest = 5, 6
    own = {"W": (HEADS * basis, DIM), "w": (HEADS * basis,), "distance_bank": (basis, furthest)}

    def peer(a: dict[str, Tensor]) -> Tensor:
        bias = RelativeProjPositionalBias(DIM, HEADS, num_distance_basis=basis, max_dist=furthest)
        names = {
            "to_distance_weights.0.weight": "W",
            "to_distance_weights.0.bias": "w",
            "distance_bank": "distance_bank",
        }
        weights = {theirs: a[name] for theirs, name in names.items()}
        bias = functional_call(bias, weights, (a["x"],), {"seq_len_k": MEMORY + LENGTH})
        return run_peer(a, False, attn_bias=bias)

    def ours(a: dict[str, Tensor]) -> Tensor:
        def per_head(features: Tensor) -> Tensor:
            return features.unflatten(-1, (HEADS, -1)).transpose(1, 2)

        tokens = torch.cat([a["mem"], a["x"]], dim=1)
        query, key, value = a["x"] @ a["to_q.weight"].T, tokens @ a["to_k.weight"].T, tokens @ a["to_v.weight"].T
        from_the_past = a["distance_bank"].T.flip(0)  # row 0: the most distant
        terms = ScoreTerms(
            relative_query=per_head(a["x"] @ a["W"].T + a["w"]) * WIDTH**0.5,
            relative_keys=OffsetTable(from_the_past[None], -(furthest - 1), "zero"),
        )
        output = relative_attention(
            per_head(query), per_head(key), per_head(value), encoding=terms, query_position=MEMORY
        )
        return output.transpose(1, 2).flatten(2) @ a["to_out.weight"].T

    assert_same_numbers(ours, peer, arrays(**own), TERMS)
