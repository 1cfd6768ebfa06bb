"""DisentangledEmbedding: content meets position from both sides."""

from __future__ import annotations

from typing import Any

import numpy as np

from relattn.checks.values import check_flag, check_size
from relattn.keras.encoding import RelativeEncoding, check_heads
from relattn.keras.installed import keras, ops
from relattn.keras.positions import Positions
from relattn.keras.table import OffsetTable
from relattn.keras.tensors import Tensor
from relattn.keras.terms import ScoreTerms
from relattn.positions.offsets import log_edges


@keras.saving.register_keras_serializable(package="relattn")
class DisentangledEmbedding(RelativeEncoding):
    """S_ij = scale * (q_i . k_j + q_i . (W_k P[delta]) + (W_q P[delta]) . k_j),  delta = clip(bucket(i - j) + K).

    clip to 0..2K-1; bucket(x) = x and K = max_distance; with num_buckets, K = num_buckets and DeBERTa-v2's buckets:
    exact up to num_buckets / 2, then logarithmic up to max_distance. DeBERTa models pass scale = 1 / sqrt(3 head_dim).
    It works only inside `RelativeMultiHeadAttention`.

    Weights:
        relative_embeddings: P, of shape `(2K, embed_dim)`, in DeBERTa's order: row 0 is the most distant future.
        pos_key_proj_weight, pos_key_proj_bias: W_k, of shape `(num_heads * head_dim, embed_dim)`, and its bias.
        pos_query_proj_weight, pos_query_proj_bias: W_q, likewise.

    Reference: He et al. 2021 (DeBERTa), eq. 3 and 4; the buckets: DeBERTa-v2's published code.
    """

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
        **kwargs: Any,
    ) -> None:
        """One table for all heads, projected for each.

        Args:
            num_heads: Number of heads.
            head_dim: Width of a head.
            embed_dim: Width of P; `num_heads * head_dim` by default.
            max_distance: The distance from which on the edge row holds.
            num_buckets: `None`, or the number of buckets on each side.
            c2p, p2c: Whether there is a term W_k (content to position), and a term W_q (position to content).
        """
        super().__init__(**kwargs)
        self.num_heads = check_size("num_heads", num_heads)
        self.head_dim = check_size("head_dim", head_dim)
        width = self.num_heads * self.head_dim
        self.embed_dim = width if embed_dim is None else check_size("embed_dim", embed_dim)
        max_distance = check_size("max_distance", max_distance, least=2)
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
        self.max_distance, self.num_buckets = max_distance, num_buckets
        self.c2p, self.p2c = c2p, p2c

    def build(self, queries_shape: Any = None) -> None:
        """Makes P, drawn from N(0, 0.02^2) as DeBERTa's, and the projections as torch initialises a Linear."""
        rows = 2 * (self.num_buckets or self.max_distance)
        initializer = keras.initializers.RandomNormal(stddev=0.02)
        self.relative_embeddings = self.add_table("relative_embeddings", (rows, self.embed_dim), initializer)
        self.pos_key_proj = self._add_projection("pos_key_proj") if self.c2p else None
        self.pos_query_proj = self._add_projection("pos_query_proj") if self.p2c else None

    def _add_projection(self, name: str) -> list[Any]:
        bound, width = self.embed_dim**-0.5, self.num_heads * self.head_dim
        shapes = {"weight": (width, self.embed_dim), "bias": (width,)}
        return [
            self.add_table(f"{name}_{part}", shape, keras.initializers.RandomUniform(-bound, bound))
            for part, shape in shapes.items()
        ]

    def terms(self, queries: Tensor, positions: Positions) -> ScoreTerms:
        """RK = W_k P[delta] over the query itself, and RQ = W_q P[delta], projected once per row of P."""
        check_heads("DisentangledEmbedding", self.num_heads, self.head_dim, queries)
        return ScoreTerms(
            relative_keys=self._table(self.pos_key_proj), relative_queries=self._table(self.pos_query_proj)
        )

    def _table(self, projection: list[Any] | None) -> OffsetTable | None:
        """The projected row of every offset up to max_distance; beyond it the row no longer changes."""
        if projection is None:
            return None
        weight, bias = (variable.value for variable in projection)
        rows = self.relative_embeddings.value @ ops.transpose(weight) + bias
        rows = ops.transpose(ops.reshape(rows, (-1, self.num_heads, self.head_dim)), (1, 0, 2))
        offsets = np.arange(-self.max_distance, self.max_distance + 1)
        return OffsetTable(ops.take(rows, self._delta(-offsets), axis=1), -self.max_distance, "clamp")

    def _delta(self, relative: np.ndarray) -> np.ndarray:
        """delta of every i - j."""
        half = self.num_buckets or self.max_distance
        bucket = relative
        if self.num_buckets is not None:
            middle = self.num_buckets // 2
            edges = log_edges(middle, self.max_distance - 1, middle - 1, self.num_buckets - middle, strict=True)
            count = np.searchsorted(edges, np.abs(relative), side="right")
            bucket = (np.minimum(np.abs(relative), middle) + count) * np.sign(relative)
        return np.clip(bucket + half, 0, 2 * half - 1)

    def get_config(self) -> dict[str, Any]:
        """The arguments it was made with."""
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "head_dim": self.head_dim,
            "embed_dim": self.embed_dim,
            "max_distance": self.max_distance,
            "num_buckets": self.num_buckets,
            "c2p": self.c2p,
            "p2c": self.p2c,
        }
