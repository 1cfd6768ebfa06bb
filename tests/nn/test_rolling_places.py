"""A cache whose keys stand on axes beside the sequence: chunks as a full pass, also where it rolls."""

import pytest
import torch

import relattn
from relattn.nn import KVCache, RelativeMultiheadAttention

LENGTH = 40
CHUNKS = (5, 1, 1, 9, 14, 1, 1, 1, 7)
CLOSE = {"rtol": 1e-9, "atol": 1e-9}


def beat(seen: int, count: int, explicit: bool) -> relattn.GridPositions | torch.Tensor:
    """Four tokens to a beat, of the tokens seen .. seen + count - 1."""
    digits = relattn.GridPositions(((1, 4, 2**40),), start=-1, first=3 + seen)
    return digits.expand(count, torch.device("cpu")) if explicit else digits


@pytest.mark.parametrize("explicit", [False, True])
@pytest.mark.parametrize("max_length", [None, 12])
def test_in_chunks_as_in_one_pass(max_length: int | None, explicit: bool) -> None:
    encoding = (
        relattn.RelativeEmbedding(8, LENGTH, causal=True)
        + relattn.RelativeEmbedding(8, 11, causal=True, beyond="clamp").on("beat")
        + relattn.RelativeEmbedding(8, 20, beyond="zero").on("pitch")
    )
    layer = RelativeMultiheadAttention(16, 2, encoding).double()
    features, pitch = torch.randn(2, LENGTH, 16).double(), torch.randint(30, (2, LENGTH))
    whole = {"beat": beat(0, LENGTH, explicit), "pitch": pitch}
    window = None if max_length is None else (max_length - 1, 0)
    expected = layer(features, is_causal=True, window=window, query_position=whole, key_position=whole)
    cache, parts, start = KVCache(max_length), [], 0
    for size in CHUNKS:
        places = {"beat": beat(start, size, explicit), "pitch": pitch[:, start : start + size]}
        parts.append(layer(features[:, start : start + size], is_causal=True, query_position=places, cache=cache))
        start += size
        for place in cache.beside.values():
            assert place.expand(cache.length, torch.device("cpu")).shape[-1] == cache.length
    torch.testing.assert_close(torch.cat(parts, 1), expected, **CLOSE)
    assert isinstance(cache.beside["beat"], relattn.ExplicitPositions if explicit else relattn.GridPositions)
