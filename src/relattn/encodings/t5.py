"""T5Bias: a learned bias per bucket of offsets (Raffel et al. 2020)."""

from __future__ import annotations

from types import MappingProxyType

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn

from relattn.checks.terms import check_kind
from relattn.checks.values import check_buckets, check_size
from relattn.encodings.base import Key, Query, RelativeEncoding
from relattn.encodings.checks import check_heads, empty_parameter
from relattn.encodings.constants import SMALL_TENSORS, edges_reached, lru_tensor_cache
from relattn.equation.tables import OffsetTable, wide
from relattn.equation.terms import ScoreTerms
from relattn.positions.positions import Positions, Span


class T5Bias(RelativeEncoding):
    """S_ij = scale * q_i . k_j + b[bucket(d)], one learned bias per bucket and head (T5 models pass scale=1).

    Half of the buckets hold one distance each. The others hold ranges that widen logarithmically up to max_distance,
    and the last bucket holds everything beyond.

    bias: the parameter [num_buckets, num_heads], as in T5's checkpoints.

    A call raises ShapeError: for a query of another number of heads.

    Source: Raffel et al. 2020 (T5), section 2.1; `relattn.offsets.t5_buckets` has the full rule.
    """

    head_axes = MappingProxyType({"bias": 1})

    def __init__(
        self, num_heads: int, *, num_buckets: int = 32, max_distance: int = 128, bidirectional: bool = True
    ) -> None:
        """One number for each bucket and head.

        num_heads: the number of query heads.
        num_buckets: of both directions together.
        max_distance: distances from there on share the last bucket.
        bidirectional: True splits the buckets between past and future. False puts all of the future (which a causal
            model does not see) into bucket 0.

        Raises TypeError: for a `bidirectional` that is not a bool; ValueError: for other sizes.
        """
        super().__init__()
        self.num_heads = check_size("num_heads", num_heads)
        self.num_buckets, self.max_distance = check_buckets(num_buckets, max_distance, bidirectional)
        self.bidirectional = bidirectional
        sizes = {"num_heads": self.num_heads, "num_buckets": self.num_buckets}
        self.bias = empty_parameter(self.num_buckets, self.num_heads, **sizes)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Biases drawn from N(0, 0.02^2), small beside the scores."""
        nn.init.normal_(self.bias, std=0.02)

    def terms(self, query: Query, key: Key, positions: Positions) -> ScoreTerms:
        """b[d] = bias[bucket(d)] for the visible |d| <= max_distance; further away the bucket no longer changes."""
        check_heads("T5Bias", self.num_heads, None, query, self.bias)
        check_kind("bias", self.bias, query)
        span = positions.span_within(self.max_distance)
        return ScoreTerms(bias=bias_table(self.bias, self.max_distance, self.bidirectional, span))

    def buckets(self, offsets: Int64[Tensor, "*n"]) -> Int64[Tensor, "*n"]:
        """bucket(d) of every offset, the same for every dtype of the parameters and on every device."""
        return buckets(offsets, self.num_buckets, self.max_distance, self.bidirectional)


def bias_table(bias: Float[Tensor, "num_buckets H"], max_distance: int, bidirectional: bool, span: Span) -> OffsetTable:
    """b[d] = bias[bucket(d)] over a span. Its edge rows hold beyond if it reaches |d| = max_distance."""
    index = _buckets_of(span, bias.device, bias.shape[0], max_distance, bidirectional)
    rows = F.embedding(index, wide(bias))  # its gradient is bit-equal on every run: see `gather_rows`
    return OffsetTable(rows.transpose(0, 1).contiguous(), span.first, "clamp")


@lru_tensor_cache(SMALL_TENSORS)
def _buckets_of(
    span: Span, device: torch.device, num_buckets: int, max_distance: int, bidirectional: bool
) -> Int64[Tensor, "count"]:
    """bucket(d) of a span. A decoder asks for the same span at every token, once max_distance lies behind it."""
    return buckets(span.offsets(device), num_buckets, max_distance, bidirectional)


def buckets(
    offsets: Int64[Tensor, "*n"], num_buckets: int, max_distance: int, bidirectional: bool
) -> Int64[Tensor, "*n"]:
    """min(|d|, m) + min(floor(log(max(|d|, m) / m) / log(max_distance / m) * (n - m)), n - 1 - m): the rule as one sum.

    Up to m the logarithm is zero, and from m on the first term is m. n: the buckets of a direction; m: half of them.
    """
    size = num_buckets // 2 if bidirectional else num_buckets
    exact = size // 2
    distance = offsets.abs() if bidirectional else offsets.neg().clamp(min=0)
    logarithmic = edges_reached(distance, exact, max_distance, size - exact, size - exact - 1, strict=False)
    bucket = distance.clamp(max=exact) + logarithmic
    return torch.add(bucket, offsets > 0, alpha=size) if bidirectional else bucket
