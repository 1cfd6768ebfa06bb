"""transformers 5.23: `Wav2Vec2ConformerSelfAttention` with position_embeddings_type="relative", Transformer-XL's.

`pos_bias_u`, `pos_bias_v` and `linear_pos` are ours by the same names. Its embeddings hold the sine and the cosine of
each frequency side by side (interleaved=True) for the distances L - 1 .. -(L - 1), query - key, which are minus the
offset. In RelativeMultiheadAttention, linear_q, linear_k, linear_v and linear_out are q_proj, k_proj, v_proj and
out_proj; RelPositionMultiHeadedAttention has every name as it is.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from transformers import Wav2Vec2ConformerConfig
from transformers.models.wav2vec2_conformer import modeling_wav2vec2_conformer as conformer

from relattn import TransformerXLEmbedding
from relattn.nn import RelativeMultiheadAttention, RelPositionMultiHeadedAttention
from tests.contract.calls import assert_equal
from tests.peers.compare import assert_same_numbers, everything_in_float64, longest_sum

pytest_plugins = ["tests.contract.fresh"]

B, HEADS, HEAD_DIM, LENGTH = 2, 3, 4, 11
WIDTH = HEADS * HEAD_DIM
OURS = {"linear_q": "q_proj", "linear_k": "k_proj", "linear_v": "v_proj", "linear_out": "out_proj"}
ENCODING = ("linear_pos", "pos_bias_u", "pos_bias_v")


def arrays() -> dict[str, Tensor]:
    found = {f"{one}.weight": torch.randn(WIDTH, WIDTH) / 3 for one in (*OURS, "linear_pos")}
    found |= {f"{one}.bias": torch.randn(WIDTH) for one in OURS}
    biases = {one: torch.randn(HEADS, HEAD_DIM) for one in ("pos_bias_u", "pos_bias_v")}
    return {**found, **biases, "x": torch.randn(B, LENGTH, WIDTH)}


def weights_of(a: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: array for name, array in a.items() if name != "x"}


def peer() -> tuple[nn.Module, nn.Module]:
    """Its attention, and the module that makes the embeddings."""
    config = Wav2Vec2ConformerConfig(
        hidden_size=WIDTH, num_attention_heads=HEADS, position_embeddings_type="relative", max_source_positions=50,
        attn_implementation="eager",
    )  # fmt: skip
    attention = conformer.Wav2Vec2ConformerSelfAttention(config).eval()
    return attention, conformer.Wav2Vec2ConformerRelPositionalEmbedding(config)


def theirs(a: dict[str, Tensor], kept: Tensor) -> Tensor:
    attention, embeddings = peer()
    mask = torch.where(kept[:, None, None], 0.0, torch.finfo(a["x"].dtype).min).to(a["x"].dtype)
    return functional_call(attention, weights_of(a), (a["x"], mask, embeddings(a["x"])))[0]


def by_our_names(a: dict[str, Tensor], kept: Tensor) -> Tensor:
    module = RelativeMultiheadAttention(WIDTH, HEADS, TransformerXLEmbedding(HEADS, HEAD_DIM, interleaved=True))
    weights = {}
    for name, array in weights_of(a).items():
        head, _, kind = name.partition(".")
        weights[f"encoding.{name}" if head in ENCODING else f"{OURS[head]}.{kind}"] = array
    return functional_call(module, weights, (a["x"],), {"key_mask": kept}, strict=True)


def by_their_names(a: dict[str, Tensor], kept: Tensor) -> Tensor:
    module = RelPositionMultiHeadedAttention(WIDTH, HEADS)
    return functional_call(module, weights_of(a), (a["x"],), {"key_mask": kept}, strict=True)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("ours", [by_our_names, by_their_names])
@pytest.mark.parametrize("padded", [0, 4])
def test_whole_attention(padded: int, ours: Callable[..., Tensor], rng) -> None:
    kept = torch.ones(B, LENGTH, dtype=torch.bool)
    kept[1, LENGTH - padded :] = False
    assert_same_numbers(
        lambda a: ours(a, kept),
        lambda a: theirs(a, kept),
        arrays(),
        longest_sum(B, LENGTH, LENGTH, WIDTH, HEAD_DIM),
        cancels={"linear_k.bias": "linear_k.weight"},
    )


def test_its_state_dict_loads_and_comes_back(rng) -> None:
    with everything_in_float64():
        (first, embeddings), (second, _) = peer(), peer()
    first.load_state_dict(weights_of(arrays()))
    module = RelPositionMultiHeadedAttention(WIDTH, HEADS).double()
    module.load_state_dict(first.state_dict())
    second.load_state_dict(module.state_dict())
    x = torch.randn(B, LENGTH, WIDTH, dtype=torch.float64)
    with everything_in_float64():
        expected = first(x, None, embeddings(x))[0]
        assert torch.equal(second(x, None, embeddings(x))[0], expected)
    assert_equal(module(x), expected)
