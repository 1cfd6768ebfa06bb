"""TransformerXLEmbedding: content and position biases with projected sinusoids (Dai et al. 2019)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from relattn.arguments import check_flag, check_size
from relattn.encodings.base import RelativeEncoding
from relattn.encodings.frequencies import inverse_frequencies
from relattn.score.check_terms import check_heads, check_visible
from relattn.score.positions import Positions, Span
from relattn.score.table import OffsetTable
from relattn.score.terms import ScoreTerms


class TransformerXLEmbedding(RelativeEncoding):
    """S_ij = scale * ((q_i + u) . k_j + (q_i + v) . W R[i - j]).

    R[p]: sinusoids of the distance p = i - j = -offset, of any length, embed_dim wide, projected by W per head; with
    learned=True, W R[p] is a table of rows for |p| < max_length instead.

    linear_pos W: Linear(embed_dim, num_heads * head_dim, bias=False), absent when learned.
    pos_bias_u u, pos_bias_v v: parameters [num_heads, head_dim], zero at first.
    relative_keys: only when learned, the parameter [num_heads, 2 * max_length - 1, head_dim], row 0 for the most
        distant past.
    embed_dim: the width of R, even; num_heads * head_dim unless given.
    interleaved: False lays out all sines, then all cosines (Dai et al.'s code; RETURNN, whose sinusoids are of j - i,
        so that the sine columns of its W change sign here); True sine and cosine of each frequency side by side
        (ESPnet, Wav2Vec2-Conformer).
    max_length: how far a learned table reaches; only with learned=True. A visible offset beyond it: ValueError.

    Source: Dai et al. 2019 (Transformer-XL), section 3.3, terms (a) to (d).
    """

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        *,
        embed_dim: int | None = None,
        interleaved: bool = False,
        max_length: int | None = None,
        learned: bool = False,
    ) -> None:
        super().__init__()
        check_size("num_heads", num_heads)
        check_size("head_dim", head_dim)
        check_flag("interleaved", interleaved)
        check_flag("learned", learned)
        self.num_heads, self.head_dim = num_heads, head_dim
        self.embed_dim = num_heads * head_dim if embed_dim is None else embed_dim
        self.interleaved, self.max_length, self.learned = interleaved, max_length, learned
        self.pos_bias_u = nn.Parameter(torch.empty(num_heads, head_dim))
        self.pos_bias_v = nn.Parameter(torch.empty(num_heads, head_dim))
        if learned:
            if max_length is None:
                raise ValueError(
                    "max_length: got None with learned=True; expected the number of positions the table reaches"
                )
            check_size("max_length", max_length)
            if embed_dim is not None:
                raise ValueError(
                    f"embed_dim: got {embed_dim} with learned=True; a learned table projects no sinusoids, leave it "
                    "out or set learned=False"
                )
            if interleaved:
                raise ValueError(
                    "interleaved: got True with learned=True; a learned table has no sinusoids to lay out, leave it "
                    "out or set learned=False"
                )
            self.relative_keys = nn.Parameter(torch.empty(num_heads, 2 * max_length - 1, head_dim))
        else:
            if max_length is not None:
                raise ValueError(
                    f"max_length: got {max_length} with learned=False; sinusoids have no end, leave it out or set "
                    "learned=True"
                )
            check_size("embed_dim", self.embed_dim)
            if self.embed_dim % 2:
                raise ValueError(
                    f"embed_dim: got {self.embed_dim}; expected an even width, a sine and a cosine for each frequency"
                )
            self.linear_pos = nn.Linear(self.embed_dim, num_heads * head_dim, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """u = v = 0; W as torch initialises a Linear, or the learned rows from N(0, 1 / head_dim)."""
        nn.init.zeros_(self.pos_bias_u)
        nn.init.zeros_(self.pos_bias_v)
        if self.learned:
            nn.init.normal_(self.relative_keys, std=self.head_dim**-0.5)
        else:
            self.linear_pos.reset_parameters()

    def terms(
        self, query: Float[Tensor, "B Hq Lq D"], key: Float[Tensor, "B Hk Lk D"], positions: Positions
    ) -> ScoreTerms:
        """q := q + u, r := q + v, RK = W R."""
        u, v = self.pos_bias_u, self.pos_bias_v
        if self.learned:
            return _terms(query, u, v, lambda: self._learned_table(positions))
        return projected_terms(self, query, positions, u, v, self.linear_pos, self.interleaved)

    def _learned_table(self, positions: Positions) -> OffsetTable:
        assert self.max_length is not None
        table = OffsetTable(self.relative_keys, -(self.max_length - 1), "refuse")
        way_out = f"make it with a larger max_length than {self.max_length}, or with learned=False"
        check_visible("TransformerXLEmbedding max_length", table, positions, lambda: way_out)
        return table

    def extra_repr(self) -> str:
        """The arguments it was made with, for `print`."""
        return (
            f"{self.num_heads}, {self.head_dim}, embed_dim={self.embed_dim}, interleaved={self.interleaved}, "
            f"max_length={self.max_length}, learned={self.learned}"
        )


def projected_terms(
    owner: object,
    query: Float[Tensor, "B Hq Lq D"],
    positions: Positions,
    u: Float[Tensor, "Hq D"],
    v: Float[Tensor, "Hq D"],
    linear_pos: nn.Linear,
    interleaved: bool,
) -> ScoreTerms:
    """q := q + u, r := q + v, RK[d] = W R[-d]; a cache keeps the rows of RK for `owner`."""

    def rows(span: Span) -> Float[Tensor, "H count D"]:
        weight = linear_pos.weight
        sinusoids = _sinusoids(-span.offsets(weight.device), linear_pos.in_features, interleaved).to(weight.dtype)
        return linear_pos(sinusoids).unflatten(-1, tuple(u.shape)).transpose(0, 1)

    return _terms(query, u, v, lambda: OffsetTable(positions.rows(owner, rows), positions.span.first, "refuse"))


def _terms(
    query: Float[Tensor, "B Hq Lq D"],
    u: Float[Tensor, "Hq D"],
    v: Float[Tensor, "Hq D"],
    relative_keys: Callable[[], OffsetTable],
) -> ScoreTerms:
    num_heads, head_dim = u.shape
    check_heads("TransformerXLEmbedding", num_heads, head_dim, query, u)
    return ScoreTerms(
        query=query + u.unsqueeze(1), relative_query=query + v.unsqueeze(1), relative_keys=relative_keys()
    )


def _sinusoids(distances: Int64[Tensor, "n"], width: int, interleaved: bool) -> Tensor:
    """R[p] [n, width] in float64: an angle of a large distance has no digits to spare. See `offsets.sinusoids`."""
    angles = distances.double().unsqueeze(-1) * inverse_frequencies(width, 10000.0, distances.device)
    if interleaved:
        return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)
    return torch.cat([angles.sin(), angles.cos()], dim=-1)
