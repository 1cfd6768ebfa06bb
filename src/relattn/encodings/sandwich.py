"""SandwichBias: the inner product of two sinusoidal positions (Chi et al. 2023)."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from relattn.checks.values import check_size
from relattn.encodings.base import Key, Query, RelativeEncoding
from relattn.encodings.checks import check_heads
from relattn.encodings.constants import LONG_TENSORS, inverse_frequencies, lru_tensor_cache
from relattn.equation.tables import OffsetTable
from relattn.equation.terms import ScoreTerms
from relattn.positions.positions import Positions, Span, Start


class SandwichBias(RelativeEncoding):
    """S_ij = scale * q_i . k_j + p_i . p_j / c_h,  p_i . p_j = sum_t cos(d * 10000^(-2 t / width)).  d = j - i.

    t = 0 .. width / 2 - 1; c_h = 8 h / num_heads for head h = 1 .. num_heads, the heads' compression ratios. The bias
    is largest at d = 0, where it is width / (2 c_h). It falls with the distance, with ripples. It is the same for the
    past and the future. There are no parameters.

    A call raises ShapeError: for a query of another number of heads.

    Source: Chi et al. 2023 (Sandwich, "Dissecting Transformer Length Extrapolation via the Lens of Receptive Field
    Analysis"); frequencies and ratios as in attention-gym's `sandwich`.

        import torch
        from relattn import SandwichBias, relative_attention

        query, key, value = torch.randn(3, 2, 4, 10, 16).unbind(0)
        output = relative_attention(query, key, value, is_causal=True, encoding=SandwichBias(num_heads=4))
    """

    def __init__(self, num_heads: int, width: int = 128) -> None:
        """No parameters: the numbers follow from the sizes.

        num_heads: the number of query heads.
        width: the number of features of p, sines and cosines together, even; in the paper 128 for every width of the
            model.

        Raises ValueError: for other sizes.
        """
        super().__init__()
        self.num_heads = check_size("num_heads", num_heads)
        self.heads: range = range(self.num_heads)  # their ratios depend on the number of all heads
        self.width = check_size("width", width)
        if self.width % 2:
            raise ValueError(f"width: got {self.width}; expected an even width, a sine and a cosine for each frequency")

    def terms(self, query: Query, key: Key, positions: Positions) -> ScoreTerms:
        """b[d] = p_i . p_j / c_h on the span; a cache keeps the rows."""
        check_heads("SandwichBias", len(self.heads), None, query)
        dtype = torch.float64 if query.dtype == torch.float64 else torch.float32

        def rows(span: Span) -> Float[Tensor, "H count"]:
            return _rows(*span, self.width, self.num_heads, self.heads, dtype, query.device)

        span = positions.span
        return ScoreTerms(bias=OffsetTable(positions.rows(self, rows, span), span.first, "error"))


@lru_tensor_cache(LONG_TENSORS)
def _rows(
    first: Start, count: int, width: int, num_heads: int, own: range, dtype: torch.dtype, device: torch.device
) -> Float[Tensor, "H count"]:
    """p_i . p_j / c_h on a span, for its own of all heads."""
    frequencies = inverse_frequencies(width, 10000.0, device)
    products = (Span(first, count).offsets(device).double().unsqueeze(-1) * frequencies).cos().sum(-1)
    heads = torch.arange(own.start + 1, own.stop + 1, dtype=torch.float64, device=device)
    return (products * (num_heads / (8.0 * heads)).unsqueeze(-1)).to(dtype)
