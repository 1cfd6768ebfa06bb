"""Attention by its definition, given what each pair scores.

    w_ij = exp(S_ij) / (exp(sink_i) + sum_j' exp(S_ij'))   over the allowed j'; exp(sink_i) where there are sinks
    O_i = sum_j w_ij (v_j + a_ij),   lse_i = log sum_j exp(S_ij)

Everything is complex-safe (maxima and comparisons look at real parts only) and any operand may carry one extra
leading axis, which is what gradient.py differentiates with.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from tests.oracle.pairs import Pairs, allowed_pairs, make_pairs


class Answer(NamedTuple):
    """output [B, H, Lq, Dv], lse [B, H, Lq], weights [B, H, Lq, Lk]."""

    output: np.ndarray
    lse: np.ndarray
    weights: np.ndarray


class Ingredients(NamedTuple):
    """What a paper adds per pair: S = scale * (content + scaled) + unscaled, values v_j + relative_values.

    content [B, H, Lq, Lk] stands in for q_i . k_j (None: it is q_i . k_j); scaled and unscaled broadcast to [B, H,
    Lq, Lk]; relative_values [B or 1, H or 1, Lq, Lk, Dv]. None: the paper has no such term.
    """

    content: np.ndarray | None = None
    scaled: np.ndarray | None = None
    unscaled: np.ndarray | None = None
    relative_values: np.ndarray | None = None


def add_ingredients(each: Sequence[Ingredients]) -> Ingredients:
    """The ingredients of a sum of encodings, of which at most one may rewrite the content."""

    def total(terms):
        terms = [term for term in terms if term is not None]
        return sum(terms[1:], start=terms[0]) if terms else None

    contents = [one.content for one in each if one.content is not None]
    assert len(contents) <= 1, "at most one operand of a sum may rewrite q . k"
    return Ingredients(
        content=contents[0] if contents else None,
        scaled=total(one.scaled for one in each),
        unscaled=total(one.unscaled for one in each),
        relative_values=total(one.relative_values for one in each),
    )


def standing(found: Ingredients, pairs: Pairs) -> Ingredients:
    """Nothing for pairs of which one stands off the grid on the axis; a rotation turns it by its angle 0."""
    both = pairs.visible[:, None]

    def kept(term, keep):
        return None if term is None else np.where(keep, term, 0.0)

    return Ingredients(
        content=found.content,
        scaled=kept(found.scaled, both),
        unscaled=kept(found.unscaled, both),
        relative_values=kept(found.relative_values, both[..., None]),
    )


def dot(query, key) -> np.ndarray:
    """q_i . k_j: [..., H, Lq, D] and [..., H, Lk, D] -> [..., H, Lq, Lk]."""
    return query @ np.swapaxes(key, -1, -2)


def rows(table, index) -> np.ndarray:
    """The row of a table [..., H, R, D] that each pair reads: index [n, Lq, Lk] -> [..., n, H, Lq, Lk, D]."""
    return np.swapaxes(np.take(table, index, axis=-2), -4, -5)


def dot_rows(query, pair_rows) -> np.ndarray:
    """q_i . a_ij: [..., H, Lq, D] and [..., H or 1, Lq, Lk, D] -> [..., H, Lq, Lk]."""
    return np.einsum("...hid,...hijd->...hij", query, pair_rows)


def expand_groups(key_or_value, num_heads: int) -> np.ndarray:
    """Grouped queries: query head h reads key head h // (Hq / Hk); [..., Hk, L, D] -> [..., Hq, L, D]."""
    return np.repeat(key_or_value, num_heads // key_or_value.shape[-3], axis=-3)


def above_the_cap(scores, softcap=None, key_bias=None, attn_mask=None) -> np.ndarray:
    """softcap * tanh(S / softcap) + a_j + mask, the numbers of a mask that hides nothing."""
    if softcap is not None:
        scores = softcap * np.tanh(scores / softcap)
    if key_bias is not None:
        scores = scores + key_bias[..., None, :]
    if attn_mask is not None and np.asarray(attn_mask).dtype != bool:
        scores = scores + np.where(np.isneginf(np.real(attn_mask)), 0.0, attn_mask)
    return scores


def softmax_attention(scores, allowed, value, relative_values=None, sinks=None) -> Answer:
    """Softmax of scores [..., B, H, Lq, Lk] over the allowed pairs, applied to value [..., B, H, Lk, Dv].

    allowed broadcasts against scores; relative_values [..., B or 1, H or 1, Lq, Lk, Dv] are added to value per pair.
    sinks [..., H] or [..., B, H, Lq]: one more logit per row, in the weights and not in lse. A row without an allowed
    pair: output 0, lse -inf, weights 0.
    """
    allowed = np.broadcast_to(allowed, np.broadcast_shapes(np.shape(allowed), scores.shape))
    scores = np.broadcast_to(scores, allowed.shape)
    dead = ~allowed.any(axis=-1, keepdims=True)
    largest = np.max(np.where(allowed, np.real(scores), -np.inf), axis=-1, keepdims=True, initial=-np.inf)
    largest = np.where(dead, 0.0, largest)
    exponentials = np.where(allowed, np.exp(np.where(allowed, scores - largest, 0.0)), 0.0)
    normaliser = np.where(dead, 1.0, exponentials.sum(axis=-1, keepdims=True))
    weights = exponentials / normaliser
    if sinks is not None:
        logit = sinks[..., None, :, None] if np.ndim(sinks) <= 2 else sinks
        weights = exponentials / (normaliser + np.exp(logit[..., None] - largest))
    lse = np.where(dead, -np.inf, largest + np.log(normaliser))[..., 0]
    output = weights @ value
    if relative_values is not None:
        output = output + np.einsum("...hij,...hijd->...hid", weights, relative_values)
    return Answer(output, lse, weights)


def attend(
    inputs,
    ingredients: Callable[[np.ndarray, np.ndarray, Pairs], Ingredients],
    *,
    scale=None,
    query_position=0,
    key_position=0,
    is_causal=False,
    window=None,
    key_mask=None,
    segment_ids=None,
    attn_mask=None,
    softcap=None,
    key_bias=None,
    sinks=None,
    axes=None,
) -> Answer:
    """Attention of `inputs` with what `ingredients(query, key, pairs)` adds; keywords as described in the package."""
    query, key, value = inputs
    num_heads = query.shape[-3]
    key, value = expand_groups(key, num_heads), expand_groups(value, num_heads)
    if scale is None:
        scale = 1.0 / np.sqrt(query.shape[-1])
    pairs = make_pairs(query.shape[-2], key.shape[-2], query_position, key_position, is_causal, window, axes)
    allowed = allowed_pairs(pairs, key_mask, segment_ids, attn_mask)

    added = ingredients(query, key, pairs)
    scores = dot(query, key) if added.content is None else added.content
    if added.scaled is not None:
        scores = scores + added.scaled
    scores = scale * scores
    if added.unscaled is not None:
        scores = scores + added.unscaled
    scores = above_the_cap(scores, softcap, key_bias, attn_mask)
    return softmax_attention(scores, allowed, value, added.relative_values, sinks)
