"""TransformerXLEmbedding: content and position biases with projected sinusoids (Dai et al. 2019)."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType

import torch
from jaxtyping import Float
from torch import Tensor, nn

from relattn.checks.values import check_flag, check_size
from relattn.encodings.base import Key, Query, RelativeEncoding
from relattn.encodings.checks import allocated, check_heads, empty_parameter
from relattn.encodings.constants import inverse_frequencies, lru_tensor_cache
from relattn.equation.tables import OffsetTable
from relattn.equation.terms import ScoreTerms
from relattn.positions.positions import Positions, Span, Start

PerHead = Float[Tensor, "Hq D"]


class TransformerXLEmbedding(RelativeEncoding):
    """S_ij = scale * ((q_i + u) . k_j + (q_i + v) . W R[i - j]).

    R[p]: sinusoids of the distance p = i - j = -offset, of any length, embed_dim wide, projected by W per head; with a
    max_length, W R[p] is a learned table of rows for |p| < max_length instead.

    linear_pos W: Linear(embed_dim, num_heads * head_dim, bias=False), absent with a max_length.
    pos_bias_u u, pos_bias_v v: parameters [num_heads, head_dim], zero at first.
    relative_keys: only with a max_length, the parameter [num_heads, 2 * max_length - 1, head_dim], row 0 for the most
        distant past.

    A call raises ValueError: for a visible offset beyond a learned table; it names max_length; ShapeError: for a query
    of another width or number of heads.

    Source: Dai et al. 2019 (Transformer-XL), section 3.3, terms (a) to (d).
    """

    head_axes = MappingProxyType({"linear_pos.weight": 0, "pos_bias_u": 0, "pos_bias_v": 0, "relative_keys": 0})

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        *,
        embed_dim: int | None = None,
        interleaved: bool = False,
        max_length: int | None = None,
    ) -> None:
        """Two vectors for each head, beside projected sinusoids or a learned table.

        num_heads: the number of query heads.
        head_dim: the width of a head.
        embed_dim: the width of R, even; num_heads * head_dim by default.
        interleaved: False lays out all sines, then all cosines (Dai et al.'s code; RETURNN, whose sinusoids are of j -
            i, so that the sine columns of its W change sign here); True sine and cosine of each frequency side by side
            (ESPnet, Wav2Vec2-Conformer).
        max_length: how far a learned table reaches; None for sinusoids, which have no end.

        Raises TypeError: for an `interleaved` that is not a bool; ValueError: for other sizes, or for embed_dim or
        interleaved together with max_length.
        """
        super().__init__()
        self.num_heads = check_size("num_heads", num_heads)
        self.head_dim = check_size("head_dim", head_dim)
        check_flag("interleaved", interleaved)
        self.interleaved = interleaved
        width = self.num_heads * self.head_dim
        self.embed_dim = width if embed_dim is None else check_size("embed_dim", embed_dim)
        self.max_length = None if max_length is None else check_size("max_length", max_length)
        sizes = {"num_heads": self.num_heads, "head_dim": self.head_dim}
        self.pos_bias_u, self.pos_bias_v = (empty_parameter(self.num_heads, self.head_dim, **sizes) for _ in "uv")
        if self.max_length is not None:
            if embed_dim is not None or interleaved:
                raise ValueError(
                    f"max_length: got {max_length} beside embed_dim={embed_dim}, interleaved={interleaved}; a learned "
                    "table has no sinusoids, leave those out or max_length"
                )
            rows = 2 * self.max_length - 1
            self.relative_keys = empty_parameter(
                self.num_heads, rows, self.head_dim, max_length=self.max_length, **sizes
            )
        else:
            if self.embed_dim % 2:
                raise ValueError(
                    f"embed_dim: got {self.embed_dim}; expected an even width, a sine and a cosine for each frequency"
                )
            self.linear_pos = allocated(
                lambda: nn.Linear(self.embed_dim, width, bias=False), **sizes, embed_dim=self.embed_dim
            )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """u = v = 0; W as torch initialises a Linear, or the learned rows from N(0, 1 / head_dim)."""
        nn.init.zeros_(self.pos_bias_u)
        nn.init.zeros_(self.pos_bias_v)
        if self.max_length is not None:
            nn.init.normal_(self.relative_keys, std=self.head_dim**-0.5)
        else:
            self.linear_pos.reset_parameters()

    def terms(self, query: Query, key: Key, positions: Positions) -> ScoreTerms:
        """q := q + u, r := q + v, RK = W R. With tokens before a grid: RQ = u in place of q + u."""
        u, v, max_length = self.pos_bias_u, self.pos_bias_v, self.max_length
        if max_length is not None:
            return _terms(query, u, v, positions, lambda: OffsetTable(self.relative_keys, -(max_length - 1), "error"))
        return projected_terms(self, query, positions, u, v, self.linear_pos, self.embed_dim, self.interleaved)

    def out_of_rows(self, table: str, positions: Positions) -> tuple[str, str]:
        """The name max_length, and what to do: give a larger one, or none, for sinusoids have rows for all offsets."""
        way_out = f"make it with a larger max_length than {self.max_length}, or without, for sinusoids"
        return "TransformerXLEmbedding max_length", way_out


def projected_terms(
    owner: object,
    query: Query,
    positions: Positions,
    u: PerHead,
    v: PerHead,
    linear_pos: nn.Linear,
    embed_dim: int,
    interleaved: bool,
) -> ScoreTerms:
    """q := q + u, r := q + v, RK[d] = W R[-d]; a cache keeps the rows of RK for `owner`.

    W takes R in the dtype of u, for its own weight may be packed.
    """

    def rows(span: Span) -> Float[Tensor, "H count D"]:
        sinusoids = _sinusoids_of(*span, embed_dim, interleaved, u.dtype, query.device)
        return linear_pos(sinusoids).view(-1, *u.shape).transpose(0, 1)

    def table() -> OffsetTable:
        span = positions.span
        return OffsetTable(positions.rows(owner, rows, span), span.first, "error")

    return _terms(query, u, v, positions, table)


def _terms(
    query: Query, u: PerHead, v: PerHead, positions: Positions, relative_keys: Callable[[], OffsetTable]
) -> ScoreTerms:
    num_heads, head_dim = u.shape
    check_heads("TransformerXLEmbedding", num_heads, head_dim, query, u)
    r = query + v.unsqueeze(1)
    if positions.prefix_tokens != (0, 0):  # u . k_j is only for tokens on the axis
        of_every_offset = OffsetTable(u.unsqueeze(1), 0, "clamp")
        return ScoreTerms(relative_query=r, relative_keys=relative_keys(), relative_queries=of_every_offset)
    return ScoreTerms(query=query + u.unsqueeze(1), relative_query=r, relative_keys=relative_keys())


@lru_tensor_cache(1)
def _sinusoids_of(
    first: Start, count: int, width: int, interleaved: bool, dtype: torch.dtype, device: torch.device
) -> Float[Tensor, "count width"]:
    """R[-d] of a span, as `offsets.sinusoids`. Only one answer is kept, because it is as wide as the model."""
    distances = -Span(first, count).offsets(device).double()  # large ones need all digits
    angles = distances.unsqueeze(-1) * inverse_frequencies(width, 10000.0, device)
    sinusoids = angles.sin(), angles.cos()
    joined = torch.stack(sinusoids, dim=-1).flatten(-2) if interleaved else torch.cat(sinusoids, dim=-1)
    return joined.to(dtype)
