"""transformers 5.23: `BloomAttention` and `MptAttention`, whose positions are ALiBi's, beside ours.

Bloom adds slope_h * (position of the key), the same for every query: slope_h * j = slope_h * (j - i) + slope_h * i, and
the last term, one number for a whole row, leaves the softmax as it is. Under causality j - i = -|d|, so this is
AlibiBias; a model that looked ahead would reward the future. `query_key_value` is fused head by head: [H, 3, D, width].

MPT adds slope_h * (j - (L - 1)), of which the same holds. `Wqkv` is fused as three blocks, without biases.
"""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import functional_call
from transformers import BloomConfig, MptConfig
from transformers.models.bloom import modeling_bloom as bloom
from transformers.models.mpt import modeling_mpt as mpt

from relattn import AlibiBias
from relattn.nn import RelativeMultiheadAttention
from relattn.positions.offsets import alibi_slopes
from tests.peers.compare import assert_same_numbers, everything_in_float64, longest_sum

pytest_plugins = ["tests.contract.fresh"]

B, LENGTH, HEAD_DIM = 2, 9, 4
EPS = 2.0**-52


@pytest.mark.parametrize("num_heads", [1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 20, 24, 32, 40, 64, 71, 112])
def test_slopes(num_heads: int) -> None:
    """Bloom takes powers of the first slope, which multiplies its rounding by as much as there are heads."""
    with everything_in_float64():
        of_bloom = bloom._get_alibi_slopes(num_heads, torch.device("cpu"))
        of_mpt = -mpt.build_mpt_alibi_tensor(num_heads, 2)[:, 0, 0]
    np.testing.assert_allclose(alibi_slopes(num_heads), of_bloom, rtol=2 * num_heads * EPS)
    np.testing.assert_allclose(alibi_slopes(num_heads), of_mpt, rtol=4 * EPS)


def additive(allowed: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.where(allowed, 0.0, torch.finfo(dtype).min).to(dtype)


def of_bloom(a: dict[str, Tensor], num_heads: int, kept: Tensor) -> Tensor:
    config = BloomConfig(hidden_size=num_heads * HEAD_DIM, n_head=num_heads)
    module = bloom.BloomAttention(config, layer_idx=0).eval()
    alibi = bloom.build_alibi_tensor(kept.long(), num_heads, a["x"].dtype)
    mask = additive(kept[:, None, None].expand(-1, 1, LENGTH, -1).tril(), a["x"].dtype)
    weights = {name: array for name, array in a.items() if name != "x"}
    return functional_call(module, weights, (a["x"], torch.zeros_like(a["x"]), alibi, mask))[0]


def of_mpt(a: dict[str, Tensor], num_heads: int, kept: Tensor) -> Tensor:
    module = mpt.MptAttention(MptConfig(d_model=num_heads * HEAD_DIM, n_heads=num_heads), layer_idx=0).eval()
    bias = mpt.build_mpt_alibi_tensor(num_heads, LENGTH)
    dropped = ~kept[:, None, None].expand(-1, 1, LENGTH, -1).tril()
    weights = {name: array for name, array in a.items() if name != "x"}
    return functional_call(module, weights, (a["x"], bias), {"attention_mask": dropped})[0]


def bloom_weights(a: dict[str, Tensor], num_heads: int) -> dict[str, Tensor]:
    found = {"out_proj.weight": a["dense.weight"], "out_proj.bias": a["dense.bias"]}
    for kind in ("weight", "bias"):
        fused = a[f"query_key_value.{kind}"].unflatten(0, (num_heads, 3, HEAD_DIM))
        found |= {f"{one}_proj.{kind}": fused[:, i].flatten(0, 1) for i, one in enumerate("qkv")}
    return found


def mpt_weights(a: dict[str, Tensor], num_heads: int) -> dict[str, Tensor]:
    blocks = zip("qkv", a["Wqkv.weight"].chunk(3), strict=True)
    return {"out_proj.weight": a["out_proj.weight"], **{f"{one}_proj.weight": block for one, block in blocks}}


def ours(a: dict[str, Tensor], weights: dict[str, Tensor], num_heads: int, kept: Tensor) -> Tensor:
    module = RelativeMultiheadAttention(
        num_heads * HEAD_DIM, num_heads, AlibiBias(num_heads), bias="out_proj.bias" in weights
    )
    return functional_call(module, weights, (a["x"],), {"is_causal": True, "key_mask": kept})


def bloom_arrays(width: int) -> dict[str, Tensor]:
    shapes = {"query_key_value.weight": (3 * width, width), "query_key_value.bias": (3 * width,)}
    shapes |= {"dense.weight": (width, width), "dense.bias": (width,)}
    return {name: torch.randn(shape) / 3 for name, shape in shapes.items()}


def mpt_arrays(width: int) -> dict[str, Tensor]:
    return {"Wqkv.weight": torch.randn(3 * width, width) / 3, "out_proj.weight": torch.randn(width, width)}


PEERS = {"Bloom": (of_bloom, bloom_weights, bloom_arrays), "MPT": (of_mpt, mpt_weights, mpt_arrays)}


@pytest.mark.one_in(12)
@pytest.mark.parametrize("padded", ["none", "left", "right"])
@pytest.mark.parametrize("num_heads", [2, 3, 4, 6])
@pytest.mark.parametrize(("peer", "converted", "drawn"), PEERS.values(), ids=PEERS)
def test_whole_attention(
    peer: Callable[..., Tensor], converted: Callable, drawn: Callable, num_heads: int, padded: str, rng
) -> None:
    """Padding's own rows are left out: theirs hold the mean of everything, ours nothing where they see nothing."""
    kept = torch.ones(B, LENGTH, dtype=torch.bool)
    if padded != "none":
        kept[1, slice(4) if padded == "left" else slice(-3, None)] = False
    width = num_heads * HEAD_DIM
    assert_same_numbers(
        lambda a: ours(a, converted(a, num_heads), num_heads, kept)[kept],
        lambda a: peer(a, num_heads, kept)[kept],
        {**drawn(width), "x": torch.randn(B, LENGTH, width)},
        longest_sum(B, LENGTH, LENGTH, width, HEAD_DIM),
    )
