"""Attention over one block of queries, by the score equation. All queries are one block, or several in order.

S_ij = scale * (q_i . k_j + r_i . RK[d] + RQ[d] . k_j) + b[d],   O_i = sum_j dropout(softmax(S))_ij * (v_j + RV[d])
"""

from __future__ import annotations

from typing import NamedTuple

from relattn.errors import ShapeError
from relattn.keras import scores as adding
from relattn.keras.installed import keras, ops
from relattn.keras.positions import Positions
from relattn.keras.scores import Block, ExplicitTable
from relattn.keras.tensors import Index, Tensor, is_known, pad_axis
from relattn.keras.terms import ScoreTerms


class Mask(NamedTuple):
    """Which pairs attend, beside the limits of positions: queries (B, Lq), keys (B, Lk), pairs (1 or B, 1 or H, Lq,
    Lk).

    Each is a boolean tensor, True where attention is allowed; None where all of it is allowed.
    """

    queries: Tensor | None = None
    keys: Tensor | None = None
    pairs: Tensor | None = None


class Settings(NamedTuple):
    """Settings that are fixed when a graph is made: visible offsets (None: no limit), the rate of dropout, tables to
    look up.
    """

    lowest: int | None
    highest: int | None
    dropout: float
    places: tuple[ExplicitTable, ...] = ()


def problem(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    terms: ScoreTerms,
    positions: Positions,
    mask: Mask,
    scale: float,
    seed: Tensor | None,
    size: Index,
    padding: Index,
) -> tuple[dict[str, Tensor], tuple[ExplicitTable, ...]]:
    """Every tensor that a block reads, by name, and how tables are looked up where positions are explicit.

    size: queries per block; padding: queries that are added at the end and cut off again.
    """
    arrays, places = adding.written_tables(terms, positions, size, padding, query.dtype)
    if "relative_values" in arrays and arrays["relative_values"].shape[-1] != value.shape[-1]:
        raise ShapeError(
            f"value_dim: got {value.shape[-1]} beside relative values of width {arrays['relative_values'].shape[-1]}; "
            "expected the same, or an encoding made with values=False"
        )
    if "relative_queries" in arrays:
        arrays["relative_queries"] = arrays["relative_queries"] * scale
        if positions.explicit:
            arrays["key_products"] = adding.key_products(key, arrays.pop("relative_queries"))
    if "relative_keys" in arrays:
        arrays["relative_query"] = (query if terms.relative_query is None else terms.relative_query) * scale
    arrays |= {"query": (query if terms.query is None else terms.query) * scale, "key": key, "value": value}
    if positions.explicit:
        queries = positions.query_positions()
        if not (is_known(padding) and padding == 0):  # with the last one, which lies no further away
            last = ops.broadcast_to(queries[:, -1:], (ops.shape(queries)[0], padding))
            queries = ops.concatenate([queries, last], axis=1)
        arrays["query_positions"], arrays["key_positions"] = queries, positions.key_positions()
    elif positions.lowest is not None or positions.highest is not None:
        arrays["start"] = ops.cast(positions.key - positions.query, "int32")
    for name, array in (("query_mask", mask.queries), ("key_mask", mask.keys), ("pair_mask", mask.pairs)):
        if array is not None:
            arrays[name] = array
    if seed is not None:
        arrays["seed"] = seed
    for name, axis in (("query", 2), ("relative_query", 2), ("query_mask", 1), ("pair_mask", 2)):
        if name in arrays and not (name == "pair_mask" and arrays[name].shape[axis] == 1):
            arrays[name] = pad_axis(arrays[name], axis, padding)
    return arrays, places


class Attended(NamedTuple):
    """The output (B, H, size, Dv) of some queries, and their softmax (B, H, size, Lk) before dropout."""

    output: Tensor
    weights: Tensor


def attend_block(settings: Settings, count: Index, index: Index, arrays: dict[str, Tensor]) -> Attended:
    """Block `index` of `count`, each of size = Lq / count queries.

    A query that may attend to nothing gets weights and output 0.
    """
    query_length, key_length = ops.shape(arrays["query"])[2], ops.shape(arrays["key"])[2]
    size = query_length // count
    block = Block(arrays, settings.places, query_length, key_length, index * size, size)
    scores = _scores(block)
    allowed = _allowed(settings, block)
    if allowed is not None:
        scores = ops.where(allowed, scores, ops.full_like(scores, LOWEST))
    # Keras warns about a softmax over one element; with a single key this is right.
    single = is_known(key_length) and key_length == 1
    weights = ops.ones_like(scores) if single else ops.softmax(scores, axis=-1)
    if allowed is not None:
        weights = ops.where(allowed, weights, ops.zeros_like(weights))
    kept = _dropped(weights, settings.dropout, arrays["seed"], index) if "seed" in arrays else weights
    output = kept @ arrays["value"]
    if "relative_values" in arrays:
        output = output + adding.relative_values(block, kept)
    return Attended(output, weights)


def _scores(block: Block) -> Tensor:
    """S (B, H, size, Lk), unmasked."""
    scores = block.own("query") @ ops.swapaxes(block.arrays["key"], -1, -2)
    if "relative_keys" in block.arrays:
        scores = scores + adding.relative_keys(block)
    if "relative_queries" in block.arrays or "key_products" in block.arrays:
        scores = scores + adding.relative_queries(block)
    if "bias" in block.arrays:
        scores = scores + adding.bias(block)
    return adding.nan_beyond(block, scores)


def _dropped(weights: Tensor, rate: float, seed: Tensor, index: Index) -> Tensor:
    """Each weight becomes 0 with the chance `rate`, and 1 / (1 - rate) times itself otherwise; each block draws its
    own.
    """
    seed = seed + ops.cast(ops.stack([index * 1_000_003, 0]), seed.dtype)
    drawn = keras.random.uniform(ops.shape(weights), dtype="float32", seed=_FixedSeed(seed))
    factor = 1.0 / (1.0 - rate) if rate < 1.0 else 0.0
    return ops.where(drawn >= rate, weights * factor, ops.zeros_like(weights))


LOWEST = -1e30
"""The score of a pair that may not attend: finite, so that a row without a pair has no NaN in its gradient."""


def _allowed(settings: Settings, block: Block) -> Tensor | None:
    """Which pairs of the block attend, to be broadcast against (B, H, size, Lk); None: all."""
    arrays, conditions = block.arrays, []
    if settings.lowest is not None or settings.highest is not None:
        offsets = block.offsets() if block.explicit else _diagonals(block)
        if settings.lowest is not None:
            conditions.append((offsets >= settings.lowest)[:, None])
        if settings.highest is not None:
            conditions.append((offsets <= settings.highest)[:, None])
    if "query_mask" in arrays:
        conditions.append(block.own("query_mask", 1)[:, None, :, None])
    if "key_mask" in arrays:
        conditions.append(arrays["key_mask"][:, None, None, :])
    if "pair_mask" in arrays:
        conditions.append(arrays["pair_mask"] if arrays["pair_mask"].shape[2] == 1 else block.own("pair_mask"))
    allowed = None
    for condition in conditions:
        allowed = condition if allowed is None else ops.logical_and(allowed, condition)
    return allowed


def _diagonals(block: Block) -> Tensor:
    """d of every pair where positions follow one another, int32 [1, size, Lk]."""
    queries = block.start + ops.arange(block.size, dtype="int32")
    return (block.arrays["start"] + ops.arange(block.key_length, dtype="int32") - queries[:, None])[None]


class _FixedSeed(keras.random.SeedGenerator):
    """A seed that is already a tensor, drawn once per call, so that a block computed again drops the same weights."""

    def __init__(self, seed: Tensor) -> None:
        self.fixed = seed

    def next(self, ordered: bool = True) -> Tensor:
        """The seed, the same every time."""
        return self.fixed
