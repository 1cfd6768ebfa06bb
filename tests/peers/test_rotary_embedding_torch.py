"""rotary-embedding-torch 0.9.1: `RotaryEmbedding` beside ours.

Its features turn in neighbouring pairs (interleaved=True). Its names: dim is rotary_dim (the features from there on
stay as they are), theta is base, interpolate_factor is the factor of {"rope_type": "linear"}; theta_rescale_factor f
multiplies the base by f^(dim / (dim - 2)). `rotate_queries_with_cached_keys` puts the last query at the last key:
query_position is the number of keys before the first query. xpos, axial and pixel frequencies are nothing of ours.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from rotary_embedding_torch import RotaryEmbedding as TheirRotary
from torch import Tensor

from relattn import RotaryEmbedding, relative_attention
from relattn.positions.contiguous import ContiguousPositions
from tests.oracle.budget import EPS
from tests.oracle.rope import rotate
from tests.peers.compare import assert_same_numbers, longest_sum

pytest_plugins = ["tests.contract.fresh"]

B, H, KEYS, D = 2, 3, 9, 8

SETTINGS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "whole": ({}, {}),
    "partial": ({"dim": 4}, {"rotary_dim": 4}),
    "another base": ({"theta": 50.0}, {"base": 50.0}),
    "interpolated": ({"interpolate_factor": 4.0}, {"scaling": {"rope_type": "linear", "factor": 4.0}}),
    "rescaled base": ({"theta_rescale_factor": 2.0}, {"base": 10000.0 * 2.0 ** (D / (D - 2))}),
}
Rotate = Callable[[TheirRotary, Tensor, Tensor], tuple[Tensor, Tensor]]


def both_whole(peer: TheirRotary, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    """Both start at position 0."""
    return peer.rotate_queries_or_keys(query), peer.rotate_queries_or_keys(key)


def the_last_queries(peer: TheirRotary, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    """Its cache of angles was made by a shorter sequence."""
    peer.rotate_queries_or_keys(key[:, :, :4])
    return peer.rotate_queries_with_cached_keys(query, key)


def the_same_from_an_offset(peer: TheirRotary, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    """The offset said by hand."""
    offset = key.shape[2] - query.shape[2]
    return peer.rotate_queries_or_keys(query, offset=offset), peer.rotate_queries_or_keys(key)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize(
    ("rotate_both", "queries", "query_position"),
    [
        (both_whole, KEYS, 0),
        (the_last_queries, 3, KEYS - 3),
        (the_last_queries, 1, KEYS - 1),
        (the_same_from_an_offset, 3, KEYS - 3),
    ],
)
def test_rotary_embedding(
    rotate_both: Rotate, queries: int, query_position: int, settings: str, rng: np.random.Generator
) -> None:
    theirs, ours = SETTINGS[settings]

    def peer(a: dict[str, Tensor]) -> Tensor:
        rotary = TheirRotary(**{"dim": D, **theirs})
        return F.scaled_dot_product_attention(*rotate_both(rotary, a["query"], a["key"]), a["value"])

    def relattn(a: dict[str, Tensor]) -> Tensor:
        encoding = RotaryEmbedding(D, interleaved=True, **ours)
        return relative_attention(**a, encoding=encoding, query_position=query_position)

    lengths = {"query": queries, "key": KEYS, "value": KEYS}
    arrays = {name: torch.randn(B, H, length, D) for name, length in lengths.items()}
    assert_same_numbers(relattn, peer, arrays, longest_sum(B, queries, KEYS, 0, D, relative_terms=0))


def test_their_positions_are_rounded_in_bfloat16_and_stay_in_the_cache() -> None:
    """257 is no bfloat16: from there on it turns by other positions' angles, and afterwards in float32 too.

    Ours are held to the oracle: the rounding of cosine, sine and result to a bfloat16, 4 halves of an ulp in all.
    """
    features = torch.ones(1, 1, 600, D)
    truth = torch.from_numpy(rotate(features.double().numpy(), np.arange(600)[None], interleaved=True))
    allowed = 4 * EPS["bfloat16"] / 2 * truth.abs().max()

    peer = TheirRotary(D)
    far_off = (peer.rotate_queries_or_keys(features.bfloat16()) - truth).abs().amax((0, 1, 3)) > allowed
    assert not far_off[:257].any() and far_off[257]
    left_behind = (peer.rotate_queries_or_keys(features) - truth).abs().amax((0, 1, 3))
    assert left_behind[257] > 1.0, "float32 now reads the angles that bfloat16 left behind"

    ours = RotaryEmbedding(D, interleaved=True).prepare_keys(features.bfloat16(), ContiguousPositions(0))
    assert ours.dtype == torch.bfloat16
    assert ((ours - truth).abs() <= allowed).all()
