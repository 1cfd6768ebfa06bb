"""Decoding one token does one token's work: one key is prepared, one row is projected."""

from __future__ import annotations

import pytest
import torch

from relattn import RotaryEmbedding, TransformerXLEmbedding
from relattn.nn import KVCache, RelativeMultiheadAttention
from relattn.nn.kept_rows import KeptRows

HEADS, WIDTH, PROMPT = 2, 8, 5


def decode(attention: RelativeMultiheadAttention, cache: KVCache, tokens: int) -> None:
    with torch.no_grad():
        for _ in range(tokens):
            attention(torch.randn(1, 1, HEADS * WIDTH), is_causal=True, cache=cache)


def test_rotary_turns_one_key_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = []
    prepare = RotaryEmbedding.prepare_keys

    def counted(self, key, key_position):
        lengths.append(key.shape[2])
        return prepare(self, key, key_position)

    monkeypatch.setattr(RotaryEmbedding, "prepare_keys", counted)
    attention, cache = RelativeMultiheadAttention(HEADS * WIDTH, HEADS, RotaryEmbedding(WIDTH)), KVCache()
    with torch.no_grad():
        attention(torch.randn(1, PROMPT, HEADS * WIDTH), is_causal=True, cache=cache)
    decode(attention, cache, 3)
    assert lengths == [PROMPT, 1, 1, 1]


def test_transformer_xl_projects_one_row_a_token() -> None:
    encoding = TransformerXLEmbedding(HEADS, WIDTH)
    lengths = []
    encoding.linear_pos.register_forward_hook(lambda module, arguments, output: lengths.append(arguments[0].shape[0]))
    attention, cache = RelativeMultiheadAttention(HEADS * WIDTH, HEADS, encoding), KVCache()
    with torch.no_grad():
        attention(torch.randn(1, PROMPT, HEADS * WIDTH), is_causal=True, cache=cache)
    decode(attention, cache, 3)
    assert lengths == [PROMPT, 1, 1, 1]


def test_transformer_xl_keeps_no_rows_while_gradients_are_recorded() -> None:
    encoding = TransformerXLEmbedding(HEADS, WIDTH)
    lengths = []
    encoding.linear_pos.register_forward_hook(lambda module, arguments, output: lengths.append(arguments[0].shape[0]))
    attention, cache = RelativeMultiheadAttention(HEADS * WIDTH, HEADS, encoding), KVCache()
    for _ in range(2):
        attention(torch.randn(1, 2, HEADS * WIDTH), is_causal=True, cache=cache)
    assert lengths == [2, 4]  # a kept row would belong to the first call's graph


@pytest.mark.parametrize("chunks", [[4, 1, 6], [1] * 11])
def test_rolling_cache_reuses_rows_for_offsets_it_has_seen(chunks: list[int]) -> None:
    encoding = TransformerXLEmbedding(HEADS, WIDTH)
    computed = []
    encoding.linear_pos.register_forward_hook(lambda module, arguments, output: computed.append(arguments[0].shape[0]))
    attention, cache = RelativeMultiheadAttention(HEADS * WIDTH, HEADS, encoding), KVCache(max_length=3)
    with torch.no_grad():
        for chunk in torch.randn(1, sum(chunks), HEADS * WIDTH).split(chunks, dim=1):
            attention(chunk, is_causal=True, cache=cache)
    assert sum(computed) == 3  # the offsets -2, -1 and 0, each once


@pytest.mark.parametrize("max_length", [None, PROMPT])
def test_kept_rows_lie_head_by_head(max_length: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rolling cache never grows into new room: what the prompt's projection left is what every token reads."""
    strides = []
    rows = KeptRows.rows

    def watched(self, owner, span, compute):
        kept = rows(self, owner, span, compute)
        strides.append(kept.stride()[1:])
        return kept

    monkeypatch.setattr(KeptRows, "rows", watched)
    attention = RelativeMultiheadAttention(HEADS * WIDTH, HEADS, TransformerXLEmbedding(HEADS, WIDTH))
    cache = KVCache(max_length)
    with torch.no_grad():
        attention(torch.randn(1, PROMPT, HEADS * WIDTH), is_causal=True, cache=cache)
    decode(attention, cache, 3)
    assert strides == [(WIDTH, 1)] * 4
