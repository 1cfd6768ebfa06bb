"""Masks and biases over every slot so far, cut to the keys that a cache still holds."""

from __future__ import annotations

from jaxtyping import Bool, Float
from torch import Tensor

from relattn.checks.tensors import INTEGER_DTYPES, check_boolean, shape
from relattn.equation.mask import AttentionMask, Segments
from relattn.errors import ShapeError
from relattn.nn.cache import KVCache


def held_key_mask(key_mask: Bool[Tensor, "B slots"], cache: KVCache) -> Bool[Tensor, "B L"]:
    """Its part for the keys that the cache holds."""
    check_boolean(key_mask)
    if key_mask.dim() != 2 or key_mask.shape[1] != cache.next_position:
        raise ShapeError(
            f"key_mask: got shape {shape(key_mask)} with a cache; expected [batch, {cache.next_position}], a flag "
            "for every slot so far"
        )
    return key_mask[:, cache.first_position :]


def held_attn_mask(attn_mask: AttentionMask, cache: KVCache) -> AttentionMask:
    """Its part, along the last axis, for the keys that the cache holds; one number for all keys stays one."""
    if not isinstance(attn_mask, Tensor) or attn_mask.dim() == 0 or attn_mask.shape[-1] == 1:
        return attn_mask
    if attn_mask.shape[-1] != cache.next_position:
        raise ShapeError(
            f"attn_mask: got shape {shape(attn_mask)} with a cache; expected a last axis of {cache.next_position}, "
            "every slot so far, or of 1"
        )
    return attn_mask[..., cache.first_position :]


def held_key_bias(key_bias: Float[Tensor, "#B #H slots"], cache: KVCache) -> Float[Tensor, "#B #H L"]:
    """Its part for the keys that the cache holds."""
    if not isinstance(key_bias, Tensor):
        return key_bias
    if key_bias.dim() == 0 or key_bias.shape[-1] != cache.next_position:
        raise ShapeError(
            f"key_bias: got shape {shape(key_bias)} with a cache; expected a last axis of {cache.next_position}, a "
            "number for every slot so far"
        )
    return key_bias[..., cache.first_position :]


def held_segments(segment_ids: Segments, count: int, cache: KVCache) -> Segments:
    """The pair of ids of the `count` queries and of the keys that the cache holds.

    If the queries were appended, one tensor [B, slots] has their ids too: the last ones.
    """
    queries: Tensor | None
    if isinstance(segment_ids, Tensor) and not cache.is_full:
        queries, keys = None, segment_ids
    elif isinstance(segment_ids, (tuple, list)) and len(segment_ids) == 2:
        queries, keys = segment_ids
    else:
        return segment_ids
    if not isinstance(keys, Tensor) or keys.dtype not in INTEGER_DTYPES:
        return segment_ids
    if keys.dim() != 2 or keys.shape[1] != cache.next_position:
        raise ShapeError(
            f"segment_ids: got shape {shape(keys)} for the key side with a cache; expected "
            f"[batch, {cache.next_position}], an id for every slot so far"
        )
    if queries is None:
        queries = keys[:, cache.next_position - count :]
    return queries, keys[:, cache.first_position :]
