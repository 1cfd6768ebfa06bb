"""transformers 5.23: `LlamaRotaryEmbedding`, `apply_rotary_pos_emb` and `LlamaAttention` beside ours.

Its features turn in halves (interleaved=False). Its `rope_parameters` less `rope_theta`, which is base, is scaling;
rope_type "default" is scaling=None. `attention_scaling`, of YaRN, multiplies its cosines and sines as it does ours. Its
angles are float32: `compare` has it compute them in float64 where we are held to it.

What it offers and the paper does not: "truncate", the rounding of YaRN's published code, and that code's ramp, which is
linear in the pair's index where the paper's is linear in its rotations. ramp="rotations", the paper's, is held
to the oracle (tests/test_offsets.py); `test_the_paper_s_ramp_is_another` shows that Llama's attention has it nowhere.
"""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call
from transformers import LlamaConfig
from transformers.models.llama import modeling_llama as llama

from relattn import RotaryEmbedding
from relattn.nn import RelativeMultiheadAttention
from tests.peers.compare import assert_same_numbers, longest_sum

pytest_plugins = ["tests.contract.fresh"]

B, HEADS, KV_HEADS, LENGTH, HEAD_DIM, WIDTH = 2, 4, 2, 11, 16, 24
LENGTHS = {"original_max_position_embeddings": 32}
SCALINGS: dict[str, dict[str, Any] | None] = {
    "default": None,
    "linear": {"rope_type": "linear", "factor": 4.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0, **LENGTHS},
    "yarn, not truncated": {"rope_type": "yarn", "factor": 4.0, "truncate": False, "beta_fast": 4, **LENGTHS},
    "yarn, its own temperature": {
        "rope_type": "yarn", "factor": 8.0, "attention_factor": 0.7, "beta_fast": 8.0, "beta_slow": 0.25, **LENGTHS,
    },
    "yarn, far longer": {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096},
    "llama3": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, **LENGTHS},
}  # fmt: skip
STARTS = {"at 0": 0, "at 1000": 1000}
every_scaling = pytest.mark.parametrize("name", SCALINGS)


def config(name: str) -> LlamaConfig:
    parameters = {"rope_theta": 500.0, **(SCALINGS[name] or {"rope_type": "default"})}
    return LlamaConfig(
        hidden_size=WIDTH, num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, head_dim=HEAD_DIM,
        max_position_embeddings=4096, rope_parameters=parameters, attn_implementation="eager",
    )  # fmt: skip


def rotary(scaling: dict[str, Any] | None) -> RotaryEmbedding:
    return RotaryEmbedding(HEAD_DIM, base=500.0, scaling=scaling)


def their_angles(name: str, features: Tensor, start: int) -> tuple[Tensor, Tensor]:
    """Their cosines and sines in the dtype of the features, for every row of the batch."""
    places = torch.arange(start, start + LENGTH).expand(B, -1)
    return llama.LlamaRotaryEmbedding(config(name))(features, places)


@pytest.mark.parametrize("start", STARTS.values(), ids=STARTS)
@every_scaling
def test_rotated_features(name: str, start: int, rng) -> None:
    """Queries turn like keys."""

    def peer(a: dict[str, Tensor]) -> Tensor:
        return llama.apply_rotary_pos_emb(a["key"], a["key"], *their_angles(name, a["key"], start))[0]

    def ours(a: dict[str, Tensor]) -> Tensor:
        return rotary(SCALINGS[name]).prepare_keys(a["key"], start)

    assert_same_numbers(ours, peer, {"key": torch.randn(B, KV_HEADS, LENGTH, HEAD_DIM)}, terms=2)


def attention_arrays() -> dict[str, Tensor]:
    """A LlamaAttention's parameters, whose names but one are ours, and its input."""
    shapes = {"q": (HEADS * HEAD_DIM, WIDTH), "k": (KV_HEADS * HEAD_DIM, WIDTH), "v": (KV_HEADS * HEAD_DIM, WIDTH)}
    weights = {f"{one}_proj.weight": torch.randn(shape) / 4 for one, shape in shapes.items()}
    return {**weights, "o_proj.weight": torch.randn(WIDTH, HEADS * HEAD_DIM), "x": torch.randn(B, LENGTH, WIDTH)}


def their_attention(name: str, a: dict[str, Tensor], kept: Tensor, start: int = 0) -> Tensor:
    """LlamaAttention with the additive mask of causality and padding that its model makes."""
    module = llama.LlamaAttention(config(name), layer_idx=0)
    allowed = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril() & kept[:, None, None]
    mask = torch.where(allowed, 0.0, torch.finfo(a["x"].dtype).min).to(a["x"].dtype)
    weights = {one: array for one, array in a.items() if one != "x"}
    return functional_call(module, weights, (a["x"], their_angles(name, a["x"], start), mask))[0]


def our_attention(scaling: dict[str, Any] | None, a: dict[str, Tensor], kept: Tensor, start: int = 0) -> Tensor:
    module = RelativeMultiheadAttention(
        WIDTH, HEADS, rotary(scaling), num_kv_heads=KV_HEADS, head_dim=HEAD_DIM, bias=False
    )
    weights = {one.replace("o_proj", "out_proj"): array for one, array in a.items() if one != "x"}
    call = {"is_causal": True, "key_mask": kept, "query_position": start, "key_position": start}
    return functional_call(module, weights, (a["x"],), call)


def kept_keys(padded: int) -> Tensor:
    kept = torch.ones(B, LENGTH, dtype=torch.bool)
    kept[1, LENGTH - padded :] = False
    return kept


TERMS = longest_sum(B, LENGTH, LENGTH, WIDTH, HEAD_DIM)


@pytest.mark.parametrize("padded", [0, 4])
@every_scaling
def test_whole_attention(name: str, padded: int, rng) -> None:
    """Grouped queries, causal, padded on the right; the scale is 1 / sqrt(head_dim) under every scaling."""
    kept = kept_keys(padded)

    def peer(a: dict[str, Tensor]) -> Tensor:
        return their_attention(name, a, kept, start=5)

    def ours(a: dict[str, Tensor]) -> Tensor:
        return our_attention(SCALINGS[name], a, kept, start=5)

    assert_same_numbers(ours, peer, attention_arrays(), TERMS)


def test_the_paper_s_ramp_is_another(rng) -> None:
    """transformers computes the ramp of YaRN's published code and not that of its paper."""
    scaling = {**SCALINGS["yarn, far longer"], "ramp": "rotations"}

    def peer(a: dict[str, Tensor]) -> Tensor:
        return their_attention("yarn, far longer", a, kept_keys(0), start=500)

    def ours(a: dict[str, Tensor]) -> Tensor:
        return our_attention(scaling, a, kept_keys(0), start=500)

    with pytest.raises(AssertionError, match=r"\(float64\).*exceeds the budget"):
        assert_same_numbers(ours, peer, attention_arrays(), TERMS)
