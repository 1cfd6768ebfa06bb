"""TransformerXLEmbedding: content and position biases with projected sinusoids (Dai et al. 2019)."""

from __future__ import annotations

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
        check_heads("TransformerXLEmbedding", self.num_heads, self.head_dim, query, self.pos_bias_u)
        return ScoreTerms(
            query=query + self.pos_bias_u.unsqueeze(1),
            relative_query=query + self.pos_bias_v.unsqueeze(1),
            relative_keys=self._learned_table(positions) if self.learned else self._projected_table(positions),
        )

    def _learned_table(self, positions: Positions) -> OffsetTable:
        assert self.max_length is not None
        table = OffsetTable(self.relative_keys, -(self.max_length - 1), "refuse")
        way_out = f"make it with a larger max_length than {self.max_length}, or with learned=False"
        check_visible("TransformerXLEmbedding max_length", table, positions, lambda: way_out)
        return table

    def _projected_table(self, positions: Positions) -> OffsetTable:
        return OffsetTable(positions.rows(self, self._projected_sinusoids), positions.span.first, "refuse")

    def _projected_sinusoids(self, span: Span) -> Float[Tensor, "H count D"]:
        """W R[-d] for every offset d of the span."""
        weight = self.linear_pos.weight
        sinusoids = _sinusoids(-span.offsets(weight.device), self.embed_dim, self.interleaved).to(weight.dtype)
        return self.linear_pos(sinusoids).unflatten(-1, (self.num_heads, self.head_dim)).transpose(0, 1)

    def extra_repr(self) -> str:
        """The arguments it was made with, for `print`."""
        return (
            f"{self.num_heads}, {self.head_dim}, embed_dim={self.embed_dim}, interleaved={self.interleaved}, "
            f"max_length={self.max_length}, learned={self.learned}"
        )


def _sinusoids(distances: Int64[Tensor, "n"], width: int, interleaved: bool) -> Tensor:
    """R[p] [n, width] in float64: an angle of a large distance has no digits to spare. See `offsets.sinusoids`."""
    angles = distances.double().unsqueeze(-1) * inverse_frequencies(width, 10000.0, distances.device)
    if interleaved:
        return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)
    return torch.cat([angles.sin(), angles.cos()], dim=-1)
