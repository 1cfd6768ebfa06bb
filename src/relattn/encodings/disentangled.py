"""DisentangledEmbedding: content meets position from both sides (He et al. 2021, DeBERTa)."""

from __future__ import annotations

from types import MappingProxyType

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from relattn.checks.values import FAR, came, check_flag, check_size
from relattn.encodings.base import Key, Query, RelativeEncoding
from relattn.encodings.checks import allocated, check_heads, empty_parameter
from relattn.encodings.constants import SMALL_TENSORS, edges_reached, lru_tensor_cache
from relattn.equation.tables import OffsetTable, gather_rows
from relattn.equation.terms import ScoreTerms
from relattn.positions.positions import Positions, Span


class DisentangledEmbedding(RelativeEncoding):
    """S_ij = scale * (q_i . k_j + q_i . (W_k P[delta]) + (W_q P[delta]) . k_j),  delta = clip(bucket(i - j) + K).

    clip to 0..2K-1; bucket(x) = x and K = max_distance; with num_buckets, K = num_buckets and DeBERTa-v2's buckets:
    exact up to num_buckets / 2, then logarithmic up to max_distance. DeBERTa models pass scale = 1 / sqrt(3 head_dim),
    or 2 in place of 3 with only one of the terms.

    relative_embeddings P: the parameter [2K, embed_dim], in DeBERTa's order: row 0 is the most distant future.
    pos_key_proj W_k (c2p, content to position) and pos_query_proj W_q (p2c, position to content): Linear(embed_dim,
        num_heads * head_dim), absent where c2p or p2c is False.

    A call raises ShapeError: for a query of another width or number of heads.

    Source: He et al. 2021 (DeBERTa), eq. 3 and 4; the buckets: DeBERTa-v2's published code. Eq. 4 writes delta(j, i) in
    the third term. The published code, and so every checkpoint, takes delta(i, j) there too. This class does the same.
    """

    head_axes = MappingProxyType(
        {"pos_key_proj.weight": 0, "pos_key_proj.bias": 0, "pos_query_proj.weight": 0, "pos_query_proj.bias": 0}
    )

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        *,
        embed_dim: int | None = None,
        max_distance: int = 512,
        num_buckets: int | None = None,
        c2p: bool = True,
        p2c: bool = True,
    ) -> None:
        """One table for all heads, projected for each.

        num_heads: the number of query heads.
        head_dim: the width of a head.
        embed_dim: the width of P; num_heads * head_dim by default.
        max_distance: the distance from which on the edge row holds.
        num_buckets: the number of buckets on each side, even; None for no buckets.
        c2p: whether there is the term with W_k, content to position.
        p2c: whether there is the term with W_q, position to content.

        Raises TypeError: for a `c2p` or `p2c` that is not a bool; ValueError: for other sizes or buckets, or if both
        are False.
        """
        super().__init__()
        self.num_heads = check_size("num_heads", num_heads)
        self.head_dim = check_size("head_dim", head_dim)
        width = self.num_heads * self.head_dim
        self.embed_dim = width if embed_dim is None else check_size("embed_dim", embed_dim)
        self.max_distance = check_size("max_distance", max_distance, least=2)
        check_flag("c2p", c2p)
        check_flag("p2c", p2c)
        if not (c2p or p2c):
            raise ValueError("c2p, p2c: got False for both; expected at least one of the terms")
        if num_buckets is not None:
            num_buckets = check_size("num_buckets", num_buckets, least=4)
            if num_buckets % 2 or num_buckets // 2 >= max_distance - 1:
                raise ValueError(
                    f"num_buckets: got {num_buckets} with max_distance={max_distance}; expected an even number below "
                    f"{2 * (max_distance - 1)}, half of it for exact distances"
                )
            if self.max_distance >= FAR:
                raise ValueError(f"max_distance: got {came(self.max_distance)}; expected an int below 2**60")
        self.num_buckets = num_buckets
        self.c2p, self.p2c = c2p, p2c
        rows = {"max_distance": self.max_distance} if num_buckets is None else {"num_buckets": num_buckets}
        count = 2 * (num_buckets or self.max_distance)
        self.relative_embeddings = empty_parameter(count, self.embed_dim, **rows, embed_dim=self.embed_dim)
        sizes = {"num_heads": self.num_heads, "head_dim": self.head_dim, "embed_dim": self.embed_dim}
        self.pos_key_proj, self.pos_query_proj = (
            allocated(lambda: nn.Linear(self.embed_dim, width), **sizes) if has_term else None
            for has_term in (c2p, p2c)
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Rows drawn from N(0, 0.02^2) as DeBERTa's; the projections as torch initialises a Linear."""
        nn.init.normal_(self.relative_embeddings, std=0.02)
        for projection in (self.pos_key_proj, self.pos_query_proj):
            if projection is not None:
                projection.reset_parameters()

    def terms(self, query: Query, key: Key, positions: Positions) -> ScoreTerms:
        """RK = W_k P[delta] over the caller's query, and RQ = W_q P[delta], projected once per row of P."""
        check_heads("DisentangledEmbedding", self.num_heads, self.head_dim, query, self.relative_embeddings)
        tables = {}
        for name, projection in (("relative_keys", self.pos_key_proj), ("relative_queries", self.pos_query_proj)):
            if projection is not None:
                rows = projection(self.relative_embeddings).unflatten(-1, (self.num_heads, -1)).transpose(0, 1)
                tables[name] = disentangled_table(rows, self.max_distance, self.num_buckets, positions)
        return ScoreTerms(**tables)


def disentangled_table(
    rows: Float[Tensor, "H 2K D"], max_distance: int, num_buckets: int | None, positions: Positions
) -> OffsetTable:
    """rows[delta(d)] for every visible offset d; from 2 * max_distance on all rows are the edge's."""
    span = positions.span_within(2 * max_distance)
    delta = _delta_of(span, rows.device, max_distance, num_buckets, rows.shape[1])
    return OffsetTable(gather_rows(rows, delta), span.first, "clamp")


@lru_tensor_cache(SMALL_TENSORS)
def _delta_of(
    span: Span, device: torch.device, max_distance: int, num_buckets: int | None, num_rows: int
) -> Int64[Tensor, "count"]:
    """delta of every offset of a span, for both terms and all layers."""
    bucket = relative = -span.offsets(device)
    if num_buckets is not None:
        middle, distance = num_buckets // 2, relative.abs()
        logarithmic = edges_reached(distance, middle, max_distance - 1, middle - 1, num_buckets - middle, strict=True)
        bucket = (distance.clamp(max=middle) + logarithmic) * relative.sign()
    return (bucket + num_rows // 2).clamp(0, num_rows - 1)
