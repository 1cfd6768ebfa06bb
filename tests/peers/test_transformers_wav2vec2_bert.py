"""transformers 5.23: `Wav2Vec2BertSelfAttention` with position_embeddings_type="relative_key", Shaw's keys.

`distance_embedding.weight` [left + 1 + right, D] is ShawEmbedding((left, right), values=False).relative_keys, one table
for all heads: row 0 for the keys left or more in the past, the last for those right or more in the future; 64 and 8 in
its models. linear_q, linear_k, linear_v and linear_out are q_proj, k_proj, v_proj and out_proj.
"""

import pytest
import torch
from torch import Tensor
from torch.func import functional_call
from transformers import Wav2Vec2BertConfig
from transformers.models.wav2vec2_bert.modeling_wav2vec2_bert import Wav2Vec2BertSelfAttention

from relattn import ShawEmbedding
from relattn.nn import RelativeMultiheadAttention
from tests.peers.compare import assert_same_numbers, longest_sum

pytest_plugins = ["tests.contract.fresh"]

B, HEADS, HEAD_DIM = 2, 2, 4
WIDTH = HEADS * HEAD_DIM
OURS = {"linear_q": "q_proj", "linear_k": "k_proj", "linear_v": "v_proj", "linear_out": "out_proj"}


def arrays(left: int, right: int, length: int) -> dict[str, Tensor]:
    found = {f"{one}.weight": torch.randn(WIDTH, WIDTH) / 3 for one in OURS}
    found |= {f"{one}.bias": torch.randn(WIDTH) for one in OURS}
    table = torch.randn(left + 1 + right, HEAD_DIM)
    return {**found, "distance_embedding.weight": table, "x": torch.randn(B, length, WIDTH)}


def theirs(a: dict[str, Tensor], left: int, right: int, kept: Tensor) -> Tensor:
    config = Wav2Vec2BertConfig(
        hidden_size=WIDTH, num_attention_heads=HEADS, position_embeddings_type="relative_key",
        left_max_position_embeddings=left, right_max_position_embeddings=right, attn_implementation="eager",
    )  # fmt: skip
    module = Wav2Vec2BertSelfAttention(config).eval()
    mask = torch.where(kept[:, None, None], 0.0, torch.finfo(a["x"].dtype).min).to(a["x"].dtype)
    weights = {name: array for name, array in a.items() if name != "x"}
    return functional_call(module, weights, (a["x"], mask))[0]


def ours(a: dict[str, Tensor], left: int, right: int, kept: Tensor) -> Tensor:
    module = RelativeMultiheadAttention(WIDTH, HEADS, ShawEmbedding(HEAD_DIM, (left, right), values=False))
    weights = {f"{name}.{kind}": a[f"{one}.{kind}"] for one, name in OURS.items() for kind in ("weight", "bias")}
    weights["encoding.relative_keys"] = a["distance_embedding.weight"].unsqueeze(0)
    return functional_call(module, weights, (a["x"],), {"key_mask": kept})


@pytest.mark.one_in(3)
@pytest.mark.parametrize("padded", [0, 4])
@pytest.mark.parametrize(("left", "right", "length"), [(64, 8, 80), (5, 2, 13), (3, 3, 2)])
def test_whole_attention(left: int, right: int, length: int, padded: int, rng) -> None:
    """Longer than the table, which then clips, and shorter."""
    kept = torch.ones(B, length, dtype=torch.bool)
    kept[1, max(length - padded, 1) :] = False
    assert_same_numbers(
        lambda a: ours(a, left, right, kept),
        lambda a: theirs(a, left, right, kept),
        arrays(left, right, length),
        longest_sum(B, length, length, WIDTH, HEAD_DIM),
        cancels={"linear_k.bias": "linear_k.weight"},
    )
