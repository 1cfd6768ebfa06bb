"""RETURNN 1.20261022.211313, its classic TensorFlow layers: `SelfAttentionLayer` whose `key_shift` is a
`RelativePositionalEncodingLayer`, beside ours.

    energy_ij = D^(-1/2) * q_i . (k_j + encoding_matrix[clip(j - i, -c, c) + c])

which is ShawEmbedding(D, c, values=False), one table for all heads. QKV has no bias and holds for each head its query,
key and value, one after the other, [in, out]. `attention_left_only` is causality; inside of a loop the layers see a
frame at a time and keep what went before.
"""

from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import functional_call

from relattn import ShawEmbedding, relative_attention
from tests.peers.compare import assert_same_numbers, longest_sum

pytest_plugins = ["tests.contract.fresh"]
pytestmark = pytest.mark.slow  # imports TensorFlow

B, LENGTH, DIM, HEADS, WIDTH, CLIP = 2, 7, 10, 3, 4, 2
TERMS = longest_sum(B, LENGTH, LENGTH, DIM, WIDTH)


class Attend(torch.nn.Module):
    """relative_attention under Shaw's keys, whose table `functional_call` gives."""

    def __init__(self) -> None:
        super().__init__()
        self.encoding = ShawEmbedding(WIDTH, CLIP, values=False)

    def forward(self, *tensors: Tensor, **keywords: object) -> Tensor:
        return relative_attention(*tensors, encoding=self.encoding, **keywords)


def ours(a: dict[str, Tensor], **keywords: object) -> Tensor:
    """The same attention by relattn, [B, L, HEADS * WIDTH]."""
    query, key, value = (a["x"] @ a["QKV"]).unflatten(-1, (HEADS, 3 * WIDTH)).transpose(1, 2).split(WIDTH, dim=-1)
    table = {"encoding.relative_keys": a["encoding_matrix"][None]}
    return functional_call(Attend(), table, (query, key, value), keywords).transpose(1, 2).flatten(2)


def arrays() -> dict[str, Tensor]:
    """x and the layers' parameters, such that scores are of size 1."""
    found = {"x": torch.randn(B, LENGTH, DIM), "QKV": torch.randn(DIM, 3 * HEADS * WIDTH) * DIM**-0.5}
    return found | {"encoding_matrix": torch.randn(2 * CLIP + 1, WIDTH)}


def theirs(a: dict[str, Tensor], way: str, lengths: tuple[int, ...] = (LENGTH, LENGTH)) -> Tensor:
    from tests.peers.returnn_classic import self_attention  # not at the top: collecting tests needs no TensorFlow

    return self_attention(a, way, HEADS, WIDTH, CLIP, list(lengths))


def test_self_attention_layer_with_key_shift(rng: np.random.Generator) -> None:
    assert_same_numbers(ours, partial(theirs, way="both directions"), arrays(), TERMS)


@pytest.mark.parametrize("way", ["causal", "step by step"])
def test_self_attention_layer_with_key_shift_to_the_left_only(way: str, rng: np.random.Generator) -> None:
    """At once, and in a loop over the frames with what it keeps."""
    assert_same_numbers(partial(ours, is_causal=True), partial(theirs, way=way), arrays(), TERMS)


def test_self_attention_layer_with_key_shift_of_padded_sequences(rng: np.random.Generator) -> None:
    """The second sequence ends three frames early; what stands behind its end is nobody's answer."""
    lengths = (LENGTH, LENGTH - 3)
    kept = torch.arange(LENGTH) < torch.tensor(lengths)[:, None]

    def frames(output: Tensor) -> Tensor:
        return output.masked_fill(~kept.unsqueeze(-1), 0.0)

    assert_same_numbers(
        lambda a: frames(ours(a, key_mask=kept)),
        lambda a: frames(theirs(a, "both directions", lengths)),
        arrays(),
        TERMS,
    )
