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
    """O of each document: `relative_attention` of its queries, keys and values alone. No pair of two documents is
    computed, but for the blocks that two share.

    query [Tq, Hq, D], key [Tk, Hk, D], value [Tk, Hk, Dv]: the rows of all documents, one document after the other, as
        FlashAttention's varlen functions take them.
    cu_seqlens [N + 1], int32 or int64: 0, then where each of N documents ends in `query`; its last number is Tq. A
        document may be empty.
    key_cu_seqlens [N + 1]: the same for key and value; None where both sides have the same documents. A document's last
        query then stands at the position of its last key, as in FlashAttention, so is_causal suits new tokens behind
        a cache.
    max_seqlen_q, max_seqlen_k: at least the length of the longest document on either side, or None. A graph cannot read
        it; there tables that refuse offsets need to be told.
    dropout_p, is_causal, scale, enable_gqa, encoding, window, softcap, backend: as in `relative_attention`. Positions
        begin again in each document.
    sinks [Hq]: as there.

    cu_seqlens is read, which waits for its device; in a graph of torch.compile the device checks it.

    Raises what `relative_attention` raises; ValueError: for a cu_seqlens that does not begin at 0, goes back, or does
    not end at the number of rows.
    """
    check_rows("query", query, "cu_seqlens")
    for name, rows in (("key", key), ("value", value)):
        check_rows(name, rows, "cu_seqlens" if key_cu_seqlens is None else "key_cu_seqlens")
    of_keys, key_starts = ("cu_seqlens", cu_seqlens) if key_cu_seqlens is None else ("key_cu_seqlens", key_cu_seqlens)
    longest = check_starts("cu_seqlens", cu_seqlens, query, "max_seqlen_q", max_seqlen_q)
    longest_of_keys = check_starts(of_keys, key_starts, key, "max_seqlen_k", max_seqlen_k)
    if len(cu_seqlens) != len(key_starts):
        raise ShapeError(
            f"key_cu_seqlens: got {len(key_starts) - 1} documents beside {len(cu_seqlens) - 1} in cu_seqlens; expected "
            "as many"
        )
    starts, key_starts = cu_seqlens.long(), key_starts.long()
    ids = _documents(starts, query.shape[0])
    key_ids = ids if key_cu_seqlens is None else _documents(key_starts, key.shape[0])
    query_position = key_position = 0
    if key_cu_seqlens is None and not (isinstance(encoding, RelativeEncoding) and encoding.rewrites_keys):
        window = _within(window, longest if longest_of_keys is None else longest_of_keys)
    else:
        more_keys = key_starts.diff() - starts.diff()
        query_position = torch.arange(query.shape[0], device=query.device) - (starts[:-1] - more_keys)[ids]
        key_position = torch.arange(key.shape[0], device=key.device) - key_starts[:-1][key_ids]
    options = Options(
        segment_ids=(ids[None], key_ids[None]) if key_ids is not ids else ids[None], window=window, softcap=softcap,
        sinks=sinks, dropout_p=dropout_p, scale=scale, backend=backend,
    )  # fmt: skip
    query, key, value = (rows.transpose(0, 1)[None] for rows in (query, key, value))
    request = request_of(query, key, value, is_causal, enable_gqa, encoding, query_position, key_position, options)
    output = request.run()[0]
    return output[0].transpose(0, 1).contiguous()


def _documents(starts: Int64[Tensor, "N+1"], total: int) -> Int64[Tensor, "T"]:
    """The number of each row's document."""
    return torch.searchsorted(starts[1:], torch.arange(total, device=starts.device), right=True)


def _within(window: Window | None, longest: int | None) -> Window | None:
    """The window, no wider than the longest document. It hides no pair more, and says which offsets are visible.

    So contiguous positions of the whole row serve all documents, for what depends on offsets alone.
    """
    if not longest:
        return window
    left, right = check_window((None, None) if window is None else window) or (None, None)
    furthest = longest - 1
    return furthest if left is None else min(left, furthest), furthest if right is None else min(right, furthest)
