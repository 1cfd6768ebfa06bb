"""What terms add to the scores and outputs of some queries. Tables are written out once per call, then read by blocks.

Where positions follow one another an offset is a diagonal, and a block reads the slice of rows that it needs. Where
they are explicit, every pair looks its row up.
"""

from __future__ import annotations

from typing import NamedTuple

from relattn.errors import UnsupportedError
from relattn.keras.arrange import key_windows, to_diagonals, to_offsets
from relattn.keras.installed import ops
from relattn.keras.positions import Positions
from relattn.keras.scatter import add_up, pick
from relattn.keras.table import Table
from relattn.keras.tensors import Index, Tensor, slice_axis, times_table, times_tables
from relattn.keras.terms import ScoreTerms

TABLES = ("relative_keys", "relative_queries", "relative_values", "bias")


class ExplicitTable(NamedTuple):
    """A table that pairs of explicit positions look up: the offset of its first row, and the number of rows.

    unknown: the limits that a pair may not exceed, where it is only known when the graph runs whether a pair does.
    """

    name: str
    first: int
    count: int
    unknown: tuple[int, int] | None


def written_tables(
    terms: ScoreTerms, positions: Positions, size: Index, padding: Index, dtype: str
) -> tuple[dict[str, Tensor], tuple[ExplicitTable, ...]]:
    """The rows of every table that a call may read, by name, in `dtype`; `ExplicitTable` ones where positions are
    explicit.

    size: queries per block; padding: queries that are added at the end to fill the last block. Relative queries over
        diagonals have descending offsets, for keys filled up to whole blocks. The others have ascending offsets, with
        one row at the end that no pair has.

    Raises ValueError: where a visible offset is known to lie beyond a table that refuses it.
    """
    arrays, places = {}, []
    for name in TABLES:
        table: Table | None = getattr(terms, name)
        if table is None:
            continue
        if table.defined is not None:
            positions.check_within(*table.defined, lambda *seen, name=name, table=table: _beyond(name, table, *seen))
        if positions.explicit:
            first, last = positions.explicit_span() if table.extent is None else table.extent
            unknown = None if table.defined is None or positions.extremes() is not None else table.defined
            places.append(ExplicitTable(name, first, last - first + 1, unknown))
            rows = table.rows(first, last - first + 1)
        elif name == "relative_queries":
            filled = positions.query_length + padding
            count = filled - (-positions.key_length // size) * size
            rows = ops.flip(table.rows(positions.key - positions.query - filled, count), axis=1)
        else:
            rows = table.rows(positions.first - padding, positions.count + padding + 1)
        rows = ops.cast(rows, dtype)
        nan = None if positions.explicit or table.defined is None else positions.nan_beyond(*table.defined)
        arrays[name] = rows if nan is None else rows + ops.cast(nan, dtype)
    return arrays, tuple(places)


def _beyond(name: str, table: Table, smallest: int, largest: int) -> str:
    assert table.defined is not None
    first, last = table.defined
    return (
        f"{name}: the offsets {smallest}..{largest} are visible and its rows cover {first}..{last}; use beyond='clamp' "
        "or 'zero', or give more rows"
    )


class Block(NamedTuple):
    """Queries start .. start + size - 1 of a call, and the tables of `written_tables` for the whole call.

    arrays holds, beside the tables, relative_query and key where terms read them, and query_positions and
    key_positions, int32 [1 or B, L], where positions are explicit.
    """

    arrays: dict[str, Tensor]
    places: tuple[ExplicitTable, ...]
    query_length: Index
    key_length: Index
    start: Index
    size: Index

    def own(self, name: str, axis: int = 2) -> Tensor:
        """The part of an array that belongs to these queries."""
        return slice_axis(self.arrays[name], axis, self.start, self.size)

    def band(self, name: str) -> Tensor:
        """The rows of a table for this block: those of its offsets, and one that `to_diagonals` does not read."""
        first = self.query_length - self.start - self.size
        return slice_axis(self.arrays[name], 1, first, self.size + self.key_length)

    @property
    def explicit(self) -> bool:
        """Whether positions are explicit."""
        return "query_positions" in self.arrays

    def offsets(self) -> Tensor:
        """d of every pair, where positions are explicit: int32 [1 or B, size, Lk]."""
        queries, keys = self.own("query_positions", 1), self.arrays["key_positions"]
        return keys[:, None, :] - queries[:, :, None]

    def index(self, name: str) -> Tensor:
        """The row of every pair in a table, where positions are explicit: [1 or B, 1, size, Lk]."""
        (place,) = (place for place in self.places if place.name == name)
        return ops.clip(self.offsets() - place.first, 0, place.count - 1)[:, None]


def relative_keys(block: Block) -> Tensor:
    """r_i . RK[d]: [B, H, size, Lk]."""
    query = block.own("relative_query")
    if block.explicit:
        rows = ops.swapaxes(block.arrays["relative_keys"], -1, -2)
        return pick(times_table(query, rows), block.index("relative_keys"))
    rows = ops.swapaxes(block.band("relative_keys"), -1, -2)
    return to_diagonals(times_table(query, rows), block.key_length)


def key_products(key: Tensor, rows: Tensor) -> Tensor:
    """k_j . RQ, all rows with every key, [B, H, Lk, R]: once per call, for pairs of explicit positions to look up."""
    return times_table(key, ops.swapaxes(rows, -1, -2))


def relative_queries(block: Block) -> Tensor:
    """RQ[d] . k_j: [B, H, size, Lk]."""
    if block.explicit:
        index = ops.swapaxes(block.index("relative_queries"), -1, -2)
        return ops.swapaxes(pick(block.arrays["key_products"], index), -1, -2)
    key, size = block.arrays["key"], block.size
    width = -(-block.key_length // size) * size
    rows = slice_axis(block.arrays["relative_queries"], 1, block.start, width + size)
    chunks, windows = key_windows(key, rows, size)
    scores = to_diagonals(times_tables(chunks, ops.swapaxes(windows, -1, -2)), size)
    batch, heads, *_ = ops.shape(key)
    scores = ops.reshape(ops.flip(scores, axis=2), (batch, heads, width, size))
    return ops.swapaxes(scores, -1, -2)[..., : block.key_length]


def bias(block: Block) -> Tensor:
    """b[d]: [1 or B, 1 or H, size, Lk]."""
    if block.explicit:
        return ops.swapaxes(ops.take(block.arrays["bias"], block.index("bias")[:, 0], axis=1), 0, 1)
    row = block.band("bias")[None, :, None, :]
    row = ops.broadcast_to(row, (1, ops.shape(row)[1], block.size, block.size + block.key_length))
    return to_diagonals(row, block.key_length)


def relative_values(block: Block, weights: Tensor) -> Tensor:
    """sum_j w_ij RV[d]: [B, H, size, Dv]."""
    if block.explicit:
        rows = block.arrays["relative_values"]
        return times_table(add_up(weights, block.index("relative_values"), rows.shape[1]), rows)
    return times_table(to_offsets(weights), block.band("relative_values"))


def nan_beyond(block: Block, scores: Tensor) -> Tensor:
    """The scores, with NaN for pairs without a row in a table: a graph that reads explicit positions cannot raise."""
    for place in block.places:
        if place.unknown is not None:
            first, last = place.unknown
            offsets = block.offsets()[:, None]
            outside = ops.logical_or(offsets < first, offsets > last)
            scores = ops.where(outside, ops.full_like(scores, float("nan")), scores)
    return scores


def added_alone(query: Tensor, terms: ScoreTerms, positions: Positions) -> Tensor:
    """What the terms alone add to the scores of a call: relative keys [B, H, Lq, Lk], or a bias [1 or B, ...]."""
    if terms.relative_queries is not None or (terms.relative_keys is None) == (terms.bias is None):
        raise UnsupportedError(
            "got an encoding whose terms are not one tensor that queries alone tell (relative queries, a rotation, "
            "scaled and unscaled terms in a sum); give it to RelativeMultiHeadAttention as encoding="
        )
    arrays, places = written_tables(terms, positions, positions.query_length, 0, query.dtype)
    arrays["relative_query"] = query if terms.relative_query is None else terms.relative_query
    if positions.explicit:
        arrays["query_positions"], arrays["key_positions"] = positions.query_positions(), positions.key_positions()
    block = Block(arrays, places, positions.query_length, positions.key_length, 0, positions.query_length)
    return nan_beyond(block, bias(block) if terms.relative_keys is None else relative_keys(block))
