"""varlen_attention: documents of any lengths, one after the other in one row of tokens."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int, Int64
from torch import Tensor

from relattn.call import Options, request_of
from relattn.checks.documents import check_rows, check_starts
from relattn.checks.positions import check_window
from relattn.encodings.base import RelativeEncoding
from relattn.equation.terms import ScoreTerms
from relattn.errors import ShapeError
from relattn.positions.certainty import can_be_read
from relattn.positions.positions import Window


def varlen_attention(
    query: Float[Tensor, "Tq Hq D"],
    key: Float[Tensor, "Tk Hk D"],
    value: Float[Tensor, "Tk Hk Dv"],
    cu_seqlens: Int[Tensor, "N+1"],
    key_cu_seqlens: Int[Tensor, "N+1"] | None = None,
    *,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    encoding: RelativeEncoding | ScoreTerms | None = None,
    window: Window | None = None,
    softcap: float | None = None,
    sinks: Float[Tensor, "Hq"] | None = None,
    backend: str = "auto",
) -> Float[Tensor, "Tq Hq Dv"]:
    """O of each document: `relative_attention` of its queries, keys and values alone. Positions begin again in each.

    query [Tq, Hq, D], key [Tk, Hk, D], value [Tk, Hk, Dv]: the rows of all documents, one document after the other, as
        FlashAttention's varlen functions take them.
    cu_seqlens [N + 1]: int32 or int64; 0, then where each of N documents ends in `query`. The last number is Tq. A
        document may be empty.
    key_cu_seqlens [N + 1]: the same for key and value; None where both sides have the same documents. A document's last
        query stands at the position of its last key, as in FlashAttention, so is_causal suits new tokens behind a
        cache.
    max_seqlen_q: at least the length of the longest document in `query`, or None. Tables that refuse offsets need both
        hints in a graph, which cannot read cu_seqlens. On a GPU the hints save them the wait for it. With a
        key_cu_seqlens of its own, functions without an end need them in a graph too.
    max_seqlen_k: the same for key and value.
    dropout_p, is_causal, scale, enable_gqa, window, softcap, sinks, backend: as in `relative_attention`.
    encoding: as there, on the sequence. A rotation whose scaling depends on the length takes that of the longest
        document.

    Raises what `relative_attention` raises; ValueError: for a cu_seqlens that does not begin at 0, goes back, or does
    not end at the number of rows; RuntimeError: for the same by the device, on a GPU and in a graph.
    """
    check_rows("query", query, "cu_seqlens")
    for name, rows in (("key", key), ("value", value)):
        check_rows(name, rows, "cu_seqlens" if key_cu_seqlens is None else "key_cu_seqlens")
    of_keys, key_starts = ("cu_seqlens", cu_seqlens) if key_cu_seqlens is None else ("key_cu_seqlens", key_cu_seqlens)
    longest = check_starts("cu_seqlens", cu_seqlens, "query", query, "max_seqlen_q", max_seqlen_q)
    longest_of_keys = check_starts(of_keys, key_starts, "key", key, "max_seqlen_k", max_seqlen_k)
    if len(cu_seqlens) != len(key_starts):
        raise ShapeError(
            f"key_cu_seqlens: got {len(key_starts) - 1} documents beside {len(cu_seqlens) - 1} in cu_seqlens; expected "
            "as many"
        )
    ids = key_ids = _documents(cu_seqlens, query.shape[0])
    query_position = key_position = 0
    same = key_starts is cu_seqlens or _are_equal(key_starts, cu_seqlens)
    if same:
        longest = longest_of_keys = longest_of_keys if longest is None else longest
    else:
        key_ids = _documents(key_starts, key.shape[0])
    if not same or (isinstance(encoding, RelativeEncoding) and encoding.rewrites_keys):
        first = cu_seqlens[1:] - key_starts.diff()  # the row of each document's query at position 0
        query_position = torch.arange(query.shape[0], device=query.device) - first[ids]
        key_position = torch.arange(key.shape[0], device=key.device) - key_starts[key_ids]
    options = Options(
        segment_ids=ids[None] if same else (ids[None], key_ids[None]),
        window=_within(window, longest, longest_of_keys), softcap=softcap, sinks=sinks, dropout_p=dropout_p,
        scale=scale, backend=backend,
    )  # fmt: skip
    query, key, value = (rows.transpose(0, 1)[None] for rows in (query, key, value))
    request = request_of(query, key, value, is_causal, enable_gqa, encoding, query_position, key_position, options)
    output = request.run()[0]
    return output[0].transpose(0, 1).contiguous()


def _are_equal(starts: Tensor, others: Tensor) -> bool:
    """Whether they are known to be the same numbers, without a wait for a device."""
    return can_be_read(starts) and can_be_read(others) and torch.equal(starts, others)


def _documents(starts: Int[Tensor, "N+1"], total: int) -> Int64[Tensor, "T"]:
    """The number of each row's document."""
    return torch.searchsorted(starts[1:], torch.arange(total, dtype=starts.dtype, device=starts.device), right=True)


def _within(window: Window | None, longest: int | None, longest_of_keys: int | None) -> Window:
    """The window, no wider than the longest documents. It hides no pair more, and says which offsets are visible.

    Where a document's last query stands at its last key, n queries and m keys are at offsets 1 - m .. n - 1. So
    contiguous positions of the whole row serve all documents, for what depends on offsets alone.
    """
    left, right = check_window((None, None) if window is None else window) or (None, None)
    return _nearer(left, longest_of_keys), _nearer(right, longest)


def _nearer(reach: int | None, length: int | None) -> int | None:
    """The limit of one side, where documents of that length are the longest."""
    if not length:
        return reach
    return length - 1 if reach is None else min(reach, length - 1)
