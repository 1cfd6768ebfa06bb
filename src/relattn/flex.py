"""flex_score_mod: an encoding that is a bias, for PyTorch's FlexAttention."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from relattn.checks.positions import places_of
from relattn.checks.tensors import check_tensors, shape
from relattn.checks.values import kind_of
from relattn.encodings.base import RelativeEncoding, lower, placed_terms
from relattn.equation.tables import OffsetTable
from relattn.equation.terms import ScoreTerms
from relattn.errors import ShapeError, UnsupportedError
from relattn.interception import refuse_trace
from relattn.positions.position import PositionsLike
from relattn.positions.positions import Positions

ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
Offset = Callable[[Tensor, Tensor, Tensor], Tensor]

_MORE_THAN_A_BIAS = {
    "query": "rewrites the queries",
    "key": "rewrites the keys",
    "relative_keys": "multiplies queries with relative keys",
    "relative_queries": "multiplies keys with relative queries",
    "relative_values": "adds relative values to the output",
}


def flex_score_mod(
    encoding: RelativeEncoding | ScoreTerms,
    query: Float[Tensor, "B Hq Lq D"],
    key: Float[Tensor, "B Hk Lk D"],
    *,
    query_position: PositionsLike = 0,
    key_position: PositionsLike = 0,
) -> ScoreMod:
    """score_mod(score, b, h, i, j) = score + bias[h, d], d = key position j - query position i, for FlexAttention.

    For torch.nn.attention.flex_attention.flex_attention(query, key, value, score_mod=..., ...) on the same query and
    key. The score arrives scaled and the bias is added unscaled, so the numbers are those of `relative_attention`.
    Causality, windows and segments are left to the caller's block mask.

    encoding: a bias, or a sum of biases: T5Bias, AlibiBias, any RelativeEncoding whose terms are a bias, or ScoreTerms
        with only a bias.
    query, key: only their shapes, dtype and device are used. With FlexAttention's enable_gqa, Hk may divide Hq.
    query_position, key_position: as in `relative_attention`.

    The score_mod captures a table with one row per offset, computed from the parameters at this moment. So in training
    make it in every forward pass. Gradients reach the encoding's parameters wherever FlexAttention differentiates
    captured tensors.

    Raises TypeError: for anything but a RelativeEncoding or ScoreTerms; UnsupportedError: for an encoding that is more
    than a bias. It also raises what `relative_attention` raises for tensors, positions and encodings that do not fit.
    """
    refuse_trace()
    if not isinstance(encoding, (RelativeEncoding, ScoreTerms)):
        raise TypeError(f"encoding: got {kind_of(encoding)}; expected a RelativeEncoding or ScoreTerms")
    check_tensors(query, key, key, enable_gqa=True)
    for name, tensor in (("query", query), ("key", key)):
        if tensor.dim() != 4:
            raise ShapeError(
                f"{name}: got shape {shape(tensor)}; expected four axes [batch, heads, length, width], as "
                "FlexAttention takes them"
            )
    batch, lengths, device = query.shape[:1], (query.shape[2], key.shape[2]), query.device
    places = places_of(query_position, key_position, batch, lengths, device, (None, None))
    if isinstance(encoding, ScoreTerms):
        terms = placed_terms(encoding, query, key, None, places)
    else:
        terms = lower(encoding, query, key, None, places)
    parts = [
        (_only_a_bias(encoding, part), _offset_of(places.on(axes, "encoding")))
        for axes, part in terms.by_axes().items()
        if part.tables or not terms.axes  # the sequence may have no bias beside other axes
    ]
    return _adding(parts, query.shape[1])


def _only_a_bias(encoding: RelativeEncoding | ScoreTerms, terms: ScoreTerms) -> OffsetTable:
    """The encoding's bias; UnsupportedError where it does anything else."""
    present = {name for name in _MORE_THAN_A_BIAS if getattr(terms, name) is not None}
    if isinstance(encoding, RelativeEncoding) and encoding.rewrites_keys:
        present.add("key")
    if present or terms.bias is None:
        does = " and ".join(doing for name, doing in _MORE_THAN_A_BIAS.items() if name in present) or "has no bias"
        raise UnsupportedError(
            f"encoding: got {kind_of(encoding)}, which {does}; a score_mod can only add a bias to a score, so "
            "use relattn.relative_attention, which computes every encoding"
        )
    return terms.bias


def _adding(parts: Sequence[tuple[OffsetTable, Offset]], heads: int) -> ScoreMod:
    """score + the sum of bias[h, offset(b, i, j)] over the axes."""
    biases = [_looked_up(bias, heads, offset) for bias, offset in parts]

    def score_mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        for bias in biases:
            score = score + bias(b, h, i, j)
        return score

    return score_mod


def _looked_up(bias: OffsetTable, heads: int, offset: Offset) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """bias[h, offset(b, i, j)]; beyond the table the edge row, or zero."""
    rows, first = bias.values.expand(heads, -1), bias.first
    if bias.beyond == "zero":  # a row of zeros at either end becomes the edge
        rows, first = F.pad(rows, (1, 1)), first - 1
    last = rows.shape[1] - 1
    return lambda b, h, i, j: rows[h, (offset(b, i, j) - first).clamp(0, last)]


def _offset_of(positions: Positions) -> Offset:
    """(b, i, j) -> key position j - query position i, in batch element b where the positions are explicit."""
    origin = positions.origin
    if origin is not None:
        return lambda b, i, j: j - i + origin
    query, key = positions.query_positions(), positions.key_positions()
    return lambda b, i, j: _position_at(key, b, j) - _position_at(query, b, i)


def _position_at(positions: Tensor, b: Tensor, index: Tensor) -> Tensor:
    return positions[index] if positions.dim() == 1 else positions[b, index]
