"""transformers 5.23: `T5Attention` beside ours.

Its relative_position is the offset d, key - query. `relative_attention_bias.weight` [num_buckets, num_heads] is
`T5Bias.bias` as it stands; is_decoder=True is bidirectional=False. q, k, v and o have no bias and scores no scale:
bias=False, scale=1.0. Cross-attention has no relative bias: encoding=None.
"""

import pytest
import torch
from torch import Tensor
from torch.func import functional_call
from transformers import T5Config
from transformers.models.t5.modeling_t5 import T5Attention

from relattn import T5Bias
from relattn.nn import RelativeMultiheadAttention
from relattn.positions.offsets import t5_buckets
from tests.peers.compare import assert_same_numbers, longest_sum

pytest_plugins = ["tests.contract.fresh"]

B, HEADS, HEAD_DIM, WIDTH, BUCKETS, FURTHEST = 2, 3, 4, 10, 8, 12
OURS = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "out_proj"}


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("num_buckets", "max_distance"), [(32, 128), (8, 20), (64, 500), (128, 4096), (12, 100)])
def test_buckets(num_buckets: int, max_distance: int, bidirectional: bool) -> None:
    offsets = torch.arange(-20_000, 20_001)
    settings = {"num_buckets": num_buckets, "max_distance": max_distance, "bidirectional": bidirectional}
    theirs = T5Attention._relative_position_bucket(offsets, **settings)
    assert torch.equal(T5Bias(1, **settings).buckets(offsets), theirs)
    assert torch.equal(torch.from_numpy(t5_buckets(offsets.numpy(), **settings)), theirs)


def arrays(length: int, memory: int | None = None) -> dict[str, Tensor]:
    """The parameters of a T5Attention and its inputs."""
    inner = HEADS * HEAD_DIM
    found = {f"{one}.weight": torch.randn(inner, WIDTH) / 4 for one in ("q", "k", "v")}
    found |= {"o.weight": torch.randn(WIDTH, inner), "x": torch.randn(B, length, WIDTH)}
    if memory is not None:
        return {**found, "memory": torch.randn(B, memory, WIDTH)}
    return {**found, "relative_attention_bias.weight": torch.randn(BUCKETS, HEADS)}


def theirs(a: dict[str, Tensor], is_decoder: bool, allowed: Tensor) -> Tensor:
    """allowed: which pairs attend; their models add the dtype's lowest number elsewhere."""
    config = T5Config(
        d_model=WIDTH, d_kv=HEAD_DIM, num_heads=HEADS, relative_attention_num_buckets=BUCKETS,
        relative_attention_max_distance=FURTHEST, is_decoder=is_decoder, attn_implementation="eager",
    )  # fmt: skip
    module = T5Attention(config, has_relative_attention_bias="memory" not in a, layer_idx=0).eval()
    mask = torch.where(allowed, 0.0, torch.finfo(a["x"].dtype).min).to(a["x"].dtype)
    weights = {name: array for name, array in a.items() if name not in ("x", "memory")}
    return functional_call(module, weights, (a["x"], mask), {"key_value_states": a.get("memory")})[0]


def ours(a: dict[str, Tensor], is_decoder: bool, key_mask: Tensor) -> Tensor:
    bias = T5Bias(HEADS, num_buckets=BUCKETS, max_distance=FURTHEST, bidirectional=not is_decoder)
    module = RelativeMultiheadAttention(
        WIDTH, HEADS, None if "memory" in a else bias, head_dim=HEAD_DIM, bias=False, scale=1.0
    )
    weights = {f"{name}.weight": a[f"{one}.weight"] for one, name in OURS.items()}
    if "memory" not in a:
        weights["encoding.bias"] = a["relative_attention_bias.weight"]
    is_causal = is_decoder and "memory" not in a
    return functional_call(module, weights, (a["x"], a.get("memory")), {"is_causal": is_causal, "key_mask": key_mask})


def kept_keys(length: int, padded: int) -> Tensor:
    kept = torch.ones(B, length, dtype=torch.bool)
    kept[1, length - padded :] = False
    return kept


@pytest.mark.parametrize("padded", [0, 5])
@pytest.mark.parametrize("is_decoder", [False, True], ids=["encoder", "decoder"])
def test_self_attention(is_decoder: bool, padded: int, rng) -> None:
    """Longer than max_distance, so that the last bucket is met."""
    length = FURTHEST + 7
    kept = kept_keys(length, padded)
    allowed = kept[:, None, None].expand(-1, 1, length, -1)
    allowed = allowed.tril() if is_decoder else allowed
    assert_same_numbers(
        lambda a: ours(a, is_decoder, kept),
        lambda a: theirs(a, is_decoder, allowed),
        arrays(length),
        longest_sum(B, length, length, WIDTH, HEAD_DIM),
    )


@pytest.mark.parametrize("padded", [0, 3])
def test_cross_attention(padded: int, rng) -> None:
    kept = kept_keys(9, padded)
    assert_same_numbers(
        lambda a: ours(a, True, kept),
        lambda a: theirs(a, True, kept[:, None, None]),
        arrays(6, memory=9),
        longest_sum(B, 6, 9, WIDTH, HEAD_DIM),
    )
