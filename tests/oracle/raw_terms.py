"""relattn's own equation by explicit loops, for tables that belong to no paper: the definition of ScoreTerms.

d     =  key position - query position
S_ij  =  scale * ( q_i . k_j  +  r_i . RK[d]  +  RQ[d] . k_j )  +  b[d]
S'_ij =  softcap * tanh(S_ij / softcap)  +  a_j  +  mask
O_i   =  sum_j softmax(S')_ij * ( v_j + RV[d] )
"""

from typing import NamedTuple

import numpy as np

from tests.oracle.equation import Answer, above_the_cap, expand_groups, softmax_attention
from tests.oracle.pairs import allowed_pairs, make_pairs


class Table(NamedTuple):
    """Row t is offset first + t; beyond the rows the edge row holds ("clamp"), nothing does ("zero"), or ValueError
    ("error", for visible offsets). values [H or 1, R, D], or [H or 1, R] for a bias."""

    values: np.ndarray
    first: int
    beyond: str = "clamp"


class Terms(NamedTuple):
    """The terms of the equation; None: q itself, k itself, the caller's own query for r, whatever `query` holds, or no
    such term."""

    query: np.ndarray | None = None
    key: np.ndarray | None = None
    relative_query: np.ndarray | None = None
    relative_keys: Table | None = None
    relative_queries: Table | None = None
    relative_values: Table | None = None
    bias: Table | None = None


def row_of(table: Table, offset: int, visible: bool, count: int) -> int | None:
    """The index of the row that stands for an offset in a table of `count` rows; None where none does."""
    row = offset - table.first
    if 0 <= row < count:
        return row
    if table.beyond == "clamp":
        return 0 if row < 0 else count - 1
    if table.beyond == "error" and visible:
        raise ValueError(f"visible offset {offset} lies outside the table's {table.first}..{table.first + count - 1}")
    return None


def vector(table: Table | None, head: int, offset: int, visible: bool):
    """The vector [..., D] a table holds for an offset, or 0."""
    if table is None:
        return 0.0
    row = row_of(table, offset, visible, table.values.shape[-2])
    own = head if table.values.shape[-3] > 1 else 0
    return 0.0 if row is None else table.values[..., own, row, :]


def scalar(table: Table | None, head: int, offset: int, visible: bool):
    """The number [...] a bias table holds for an offset, or 0."""
    if table is None:
        return 0.0
    row = row_of(table, offset, visible, table.values.shape[-1])
    own = head if table.values.shape[-2] > 1 else 0
    return 0.0 if row is None else table.values[..., own, row]


def raw_terms(
    inputs,
    terms: Terms,
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
) -> Answer:
    """The equation above, pair by pair; inputs and keywords as for ORACLES."""
    query, key, value = inputs
    num_heads = query.shape[-3]
    if scale is None:
        scale = 1.0 / np.sqrt(query.shape[-1])
    relative_query = query if terms.relative_query is None else terms.relative_query
    query = query if terms.query is None else terms.query
    key = expand_groups(key if terms.key is None else terms.key, num_heads)
    value = expand_groups(value, num_heads)
    batch, query_length, key_length = query.shape[-4], query.shape[-2], key.shape[-2]
    pairs = make_pairs(query_length, key_length, query_position, key_position, is_causal, window)
    allowed = allowed_pairs(pairs, key_mask, segment_ids, attn_mask)

    scores, pair_values = {}, {}
    for b, h, i, j in np.ndindex(batch, num_heads, query_length, key_length):
        n = b if len(pairs.offset) > 1 else 0
        d, visible = int(pairs.offset[n, i, j]), bool(pairs.visible[n, i, j])
        q, k, r = query[..., b, h, i, :], key[..., b, h, j, :], relative_query[..., b, h, i, :]
        inner = (
            (q * k).sum(-1)
            + (r * vector(terms.relative_keys, h, d, visible)).sum(-1)
            + (vector(terms.relative_queries, h, d, visible) * k).sum(-1)
        )
        scores[b, h, i, j] = scale * inner + scalar(terms.bias, h, d, visible)
        pair_values[b, h, i, j] = vector(terms.relative_values, h, d, visible)

    grid = (batch, num_heads, query_length, key_length)
    extra = None if terms.relative_values is None else _stacked(pair_values, grid, (value.shape[-1],))
    capped = above_the_cap(_stacked(scores, grid, ()), softcap, key_bias, attn_mask)
    return softmax_attention(capped, allowed, value, extra, sinks)


def _stacked(entries: dict, grid: tuple[int, ...], tail: tuple[int, ...]) -> np.ndarray:
    """[..., *grid, *tail] from a dictionary of entries [..., *tail] (or 0) by grid index."""
    lead = max((np.shape(entry)[: np.ndim(entry) - len(tail)] for entry in entries.values()), key=len)
    kind = np.result_type(np.float64, *entries.values())
    whole = np.zeros((*lead, *grid, *tail), dtype=kind)
    for index, entry in entries.items():
        whole[(..., *index, *([slice(None)] * len(tail)))] = entry
    return whole
