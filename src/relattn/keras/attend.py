"""Attention over one block of queries, by the score equation; all of them are one block, or several in order.

S_ij = scale * (q_i . k_j + r_i . RK[d]) + b[d],   O_i = sum_j dropout(softmax(S))_ij * (v_j + RV[d])
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from relattn.keras.arrange import to_diagonals, to_offsets
from relattn.keras.encoding import ScoreTerms
from relattn.keras.installed import keras, ops
from relattn.keras.positions import Positions
from relattn.keras.tensors import Index, Tensor, is_known, slice_axis, times_table


class Mask(NamedTuple):
    """Which pairs attend, besides what positions say: queries (B, Lq), keys (B, Lk), pairs (1 or B, 1 or H, Lq, Lk).

    A boolean tensor each, True where attention is allowed; None where all is.
    """

    queries: Tensor | None = None
    keys: Tensor | None = None
    pairs: Tensor | None = None


class Settings(NamedTuple):
    """What is fixed when a graph is made: visible offsets (None: no limit), and the rate of dropout."""

    lowest: int | None
    highest: int | None
    dropout: float


def problem(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    terms: ScoreTerms,
    positions: Positions,
    mask: Mask,
    scale: float,
    seed: Tensor | None,
    padding: Index,
) -> dict[str, Tensor]:
    """Every tensor that a block reads, by name; `padding` queries are added at the end, to be cut off again.

    Tables are written out over the span of offsets, with one row at the end that no pair has.
    """
    first, count = positions.first - padding, positions.count + padding + 1
    arrays = {"query": (query if terms.query is None else terms.query) * scale, "key": key, "value": value}
    if terms.relative_keys is not None:
        assert terms.relative_query is not None
        arrays["relative_query"] = terms.relative_query * scale
    for name in ("relative_keys", "relative_values", "bias"):
        table = getattr(terms, name)
        if table is not None:
            arrays[name] = ops.cast(table.rows(first, count), query.dtype)
    if positions.lowest is not None or positions.highest is not None:
        arrays["start"] = ops.cast(positions.key - positions.query, "int32")
    for name, array in (("query_mask", mask.queries), ("key_mask", mask.keys), ("pair_mask", mask.pairs)):
        if array is not None:
            arrays[name] = array
    if seed is not None:
        arrays["seed"] = seed
    if not (is_known(padding) and padding == 0):
        for name, axis in (("query", 2), ("relative_query", 2), ("query_mask", 1), ("pair_mask", 2)):
            if name in arrays and not (name == "pair_mask" and arrays[name].shape[axis] == 1):
                widths = [(0, 0)] * len(arrays[name].shape)
                widths[axis] = (0, padding)
                arrays[name] = ops.pad(arrays[name], widths)
    return arrays


class Block(NamedTuple):
    """The output (B, H, size, Dv) of some queries, and their softmax (B, H, size, Lk) before dropout."""

    output: Tensor
    weights: Tensor


def attend_block(settings: Settings, count: Index, index: Index, arrays: dict[str, Tensor]) -> Block:
    """Block `index` of `count`, each of size = Lq / count queries.

    A query that may attend to nothing gets weights and output 0.
    """
    query_length, key_length = ops.shape(arrays["query"])[2], ops.shape(arrays["key"])[2]
    size = query_length // count
    start = index * size

    def own(name: str, axis: int = 2) -> Tensor:
        """The part of an array that belongs to these queries."""
        return slice_axis(arrays[name], axis, start, size)

    def band(name: str) -> Tensor:
        """The rows of a table for this block: its offsets, and the one that `to_diagonals` does not read."""
        return slice_axis(arrays[name], 1, query_length - start - size, size + key_length)

    scores = _scores(arrays, own, band)
    allowed = _allowed(settings, arrays, own, start, size, key_length)
    if allowed is not None:
        scores = ops.where(allowed, scores, ops.full_like(scores, LOWEST))
    # Keras warns of a softmax over one element; a single key is all there is to attend to.
    single = is_known(key_length) and key_length == 1
    weights = ops.ones_like(scores) if single else ops.softmax(scores, axis=-1)
    if allowed is not None:
        weights = ops.where(allowed, weights, ops.zeros_like(weights))
    kept = _dropped(weights, settings.dropout, arrays["seed"], index) if "seed" in arrays else weights
    output = kept @ arrays["value"]
    if "relative_values" in arrays:
        output = output + times_table(to_offsets(kept), band("relative_values"))
    return Block(output, weights)


def _scores(arrays: dict[str, Tensor], own: Callable[..., Tensor], band: Callable[[str], Tensor]) -> Tensor:
    """S (B, H, size, Lk), unmasked."""
    scores = own("query") @ ops.swapaxes(arrays["key"], -1, -2)
    _, _, size, key_length = ops.shape(scores)
    if "relative_keys" in arrays:
        rows = ops.swapaxes(band("relative_keys"), -1, -2)
        scores = scores + to_diagonals(times_table(own("relative_query"), rows), key_length)
    if "bias" in arrays:
        row = band("bias")[None, :, None, :]
        row = ops.broadcast_to(row, (1, row.shape[1], size, size + key_length))
        scores = scores + to_diagonals(row, key_length)
    return scores


def _dropped(weights: Tensor, rate: float, seed: Tensor, index: Index) -> Tensor:
    """Each weight 0 at the chance `rate`, and 1 / (1 - rate) times itself otherwise; a block draws its own."""
    seed = seed + ops.cast(ops.stack([index * 1_000_003, 0]), seed.dtype)
    drawn = keras.random.uniform(ops.shape(weights), dtype="float32", seed=_FixedSeed(seed))
    factor = 1.0 / (1.0 - rate) if rate < 1.0 else 0.0
    return ops.where(drawn >= rate, weights * factor, ops.zeros_like(weights))


LOWEST = -1e30
"""The score of a pair that may not attend: finite, so that a row without a pair has no NaN in its gradient."""


def _allowed(
    settings: Settings,
    arrays: dict[str, Tensor],
    own: Callable[..., Tensor],
    start: Index,
    size: Index,
    key_length: Index,
) -> Tensor | None:
    """Which pairs of the block attend, to be broadcast against (B, H, size, Lk); None: all."""
    conditions = []
    if "start" in arrays:
        queries = start + ops.arange(size, dtype="int32")
        offsets = arrays["start"] + ops.arange(key_length, dtype="int32") - queries[:, None]
        if settings.lowest is not None:
            conditions.append((offsets >= settings.lowest)[None, None])
        if settings.highest is not None:
            conditions.append((offsets <= settings.highest)[None, None])
    if "query_mask" in arrays:
        conditions.append(own("query_mask", 1)[:, None, :, None])
    if "key_mask" in arrays:
        conditions.append(arrays["key_mask"][:, None, None, :])
    if "pair_mask" in arrays:
        conditions.append(arrays["pair_mask"] if arrays["pair_mask"].shape[2] == 1 else own("pair_mask"))
    allowed = None
    for condition in conditions:
        allowed = condition if allowed is None else ops.logical_and(allowed, condition)
    return allowed


class _FixedSeed(keras.random.SeedGenerator):
    """A seed that is a tensor already: drawn once per call, so that a block computed again drops the same weights."""

    def __init__(self, seed: Tensor) -> None:
        self.fixed = seed

    def next(self, ordered: bool = True) -> Tensor:
        """The seed, the same every time."""
        return self.fixed
