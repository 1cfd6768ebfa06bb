"""Attention over one block of queries, by the score equation; all of them are one block, or several in order.

S_ij = scale * (q_i . k_j + r_i . RK[d]) + b[d],   O_i = sum_j dropout(softmax(S))_ij * (v_j + RV[d])
"""

from __future__ import annotations

from typing import Any, NamedTuple

from relattn.keras.arrange import to_diagonals, to_offsets
from relattn.keras.encoding import ScoreTerms
from relattn.keras.installed import keras, ops
from relattn.keras.positions import Positions
from relattn.keras.tensors import Index, Tensor, is_known, slice_axis


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
    """output (B, H, size, Dv) of some queries; exponentials (B, H, size, Lk) / total (B, H, size, 1) is the softmax."""

    output: Tensor
    exponentials: Tensor
    total: Tensor


def attend_block(settings: Settings, count: Index, index: Index, arrays: dict[str, Tensor]) -> Block:
    """Block `index` of `count`, each of size = Lq / count queries.

    A query that may attend to nothing gets weights and output 0.
    """
    query_length, key_length = ops.shape(arrays["query"])[2], ops.shape(arrays["key"])[2]
    size = query_length // count
    start = index * size

    def own(name: str, axis: int = 2) -> Tensor:
        return slice_axis(arrays[name], axis, start, size)

    def band(name: str) -> Tensor:
        """The rows of a table for this block: its offsets, and the one that `to_diagonals` does not read."""
        return slice_axis(arrays[name], 1, query_length - start - size, size + key_length)

    scores = own("query") @ ops.swapaxes(arrays["key"], -1, -2)
    if "relative_keys" in arrays:
        products = own("relative_query") @ ops.swapaxes(band("relative_keys"), -1, -2)
        scores = scores + to_diagonals(products, key_length)
    if "bias" in arrays:
        row = band("bias")[None, :, None, :]
        products = ops.broadcast_to(row, (1, row.shape[1], size, size + key_length))
        scores = scores + to_diagonals(products, key_length)
    allowed = _allowed(settings, arrays, own, start, size, key_length)
    if allowed is not None:
        scores = ops.where(allowed, scores, ops.full_like(scores, LOWEST))
    largest = ops.stop_gradient(ops.max(scores, axis=-1, keepdims=True))
    exponentials = ops.exp(scores - largest)
    if allowed is not None:
        exponentials = ops.where(allowed, exponentials, ops.zeros_like(exponentials))
    total = ops.sum(exponentials, axis=-1, keepdims=True)
    total = ops.where(total == 0, ops.ones_like(total), total)
    kept = exponentials
    if "seed" in arrays:
        seed = arrays["seed"] + ops.cast(ops.stack([index * 1_000_003, 0]), arrays["seed"].dtype)
        drawn = keras.random.uniform(ops.shape(exponentials), dtype="float32", seed=_FixedSeed(seed))
        factor = 1.0 / (1.0 - settings.dropout) if settings.dropout < 1.0 else 0.0
        kept = ops.where(drawn >= settings.dropout, exponentials * factor, ops.zeros_like(exponentials))
    output = kept @ arrays["value"]
    if "relative_values" in arrays:
        output = output + to_offsets(kept) @ band("relative_values")
    return Block(output / total, exponentials, total)


LOWEST = -1e30
"""The score of a pair that may not attend: finite, so that a row without a pair has no NaN in its gradient."""


def _allowed(
    settings: Settings, arrays: dict[str, Tensor], own: Any, start: Index, size: Index, key_length: Index
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
        return self.fixed
