"""Which pairs (i, j) exist, how far apart they are, and which of them may attend."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np


class Pairs(NamedTuple):
    """Positions and offsets of all pairs; n is 1, or B where positions differ between batch elements.

    query_position [n, Lq], key_position [n, Lk], offset [n, Lq, Lk] = key position - query position,
    visible [n, Lq, Lk]: what causality and window leave; on another axis than the sequence, where both elements stand.
    axes: the pairs on other axes, by name. prefix_tokens: how many queries and keys, from the first, stand on none of
        those.
    """

    query_position: np.ndarray
    key_position: np.ndarray
    offset: np.ndarray
    visible: np.ndarray
    axes: Mapping[str, "Pairs"] = {}
    prefix_tokens: tuple[int, int] = (0, 0)


class OnAxis(NamedTuple):
    """Where both sides stand on an axis: [L] or [B, L], 0 for the prefix tokens, which stand off the grid."""

    query: np.ndarray
    key: np.ndarray
    prefix_tokens: tuple[int, int] = (0, 0)


def positions(start_or_positions: np.ndarray | int, length: int) -> np.ndarray:
    """[1 or B, length] int64 from the first position, or from explicit positions [length] or [B, length]."""
    given = np.asarray(start_or_positions, dtype=np.int64)
    if given.ndim == 0:
        return (given + np.arange(length))[None, :]
    assert given.shape[-1] == length, f"explicit positions of shape {given.shape} for length {length}"
    return given.reshape(-1, length)


def make_pairs(
    query_length: int,
    key_length: int,
    query_position: np.ndarray | int = 0,
    key_position: np.ndarray | int = 0,
    is_causal: bool = False,
    window: tuple[int | None, int | None] | None = None,
    axes: Mapping[str, OnAxis] | None = None,
) -> Pairs:
    """The pairs of a problem; is_causal keeps offsets <= 0, window=(left, right) keeps -left <= offset <= right.

    Both look at the sequence alone; axes: where queries and keys stand on others.
    """
    query_position = positions(query_position, query_length)
    key_position = positions(key_position, key_length)
    offset = key_position[:, None, :] - query_position[:, :, None]
    visible = np.ones(offset.shape, dtype=bool)
    if is_causal:
        visible &= offset <= 0
    if window is not None:
        left, right = window
        if left is not None:
            visible &= offset >= -left
        if right is not None:
            visible &= offset <= right
    others = {} if axes is None else {name: _pairs_on(axis) for name, axis in axes.items()}
    return Pairs(query_position, key_position, offset, visible, others)


def _pairs_on(axis: OnAxis) -> Pairs:
    """The pairs on one axis beside the sequence."""
    query, key = (np.atleast_2d(np.asarray(side, dtype=np.int64)) for side in (axis.query, axis.key))
    offset = key[:, None, :] - query[:, :, None]
    stands = [
        np.arange(side.shape[-1]) >= prefix_tokens
        for side, prefix_tokens in zip((query, key), axis.prefix_tokens, strict=True)
    ]
    standing = np.broadcast_to(stands[0][:, None] & stands[1][None, :], offset.shape)
    return Pairs(query, key, offset, standing, prefix_tokens=axis.prefix_tokens)


def allowed_pairs(pairs: Pairs, key_mask=None, segment_ids=None, attn_mask=None) -> np.ndarray:
    """[..., B or 1, H or 1, Lq, Lk] bool: visible, key kept, same segment, attn_mask neither False nor -inf."""
    allowed = pairs.visible[:, None, :, :]
    if key_mask is not None:
        allowed = allowed & np.asarray(key_mask, dtype=bool)[:, None, None, :]
    if segment_ids is not None:
        query_segment, key_segment = segment_ids if isinstance(segment_ids, tuple) else (segment_ids, segment_ids)
        query_segment, key_segment = np.asarray(query_segment), np.asarray(key_segment)
        allowed = allowed & (query_segment[:, None, :, None] == key_segment[:, None, None, :])
    if attn_mask is not None:
        attn_mask = np.asarray(attn_mask)
        allowed = allowed & (attn_mask if attn_mask.dtype == bool else ~np.isneginf(np.real(attn_mask)))
    return allowed


def refuse_beyond(pairs: Pairs, first: int, last: int) -> None:
    """ValueError where a visible offset lies outside first..last."""
    outside = pairs.visible & ((pairs.offset < first) | (pairs.offset > last))
    if outside.any():
        raise ValueError(f"visible offset {pairs.offset[outside][0]} lies outside the table's {first}..{last}")
