"""Edges of logarithmic buckets: whole numbers, whatever device or graph compares with them."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import Tensor

import relattn
from relattn.encodings.constants import edges_reached
from relattn.encodings.disentangled import _delta_of
from relattn.encodings.t5 import buckets
from relattn.positions.offsets import log_edges
from relattn.positions.positions import Span

PLACES = [(first, last, steps) for first in (2, 3, 4, 8, 128) for last in (5, 12, 27, 64, 128, 511, 512) if last > first
          for steps in (2, 3, 8, 127)]  # fmt: skip


def floor_of(distance: int, first: int, last: int, steps: int) -> int:
    """In whole numbers: the largest c with (last / first)^c <= (distance / first)^steps."""
    whole = 0
    while Fraction(last, first) ** (whole + 1) <= Fraction(distance, first) ** steps:
        whole += 1
    return whole


def ceil_of(distance: int, first: int, last: int, steps: int) -> int:
    """The smallest c with (last / first)^c >= (distance / first)^steps."""
    whole = floor_of(distance, first, last, steps)
    return whole + (Fraction(last, first) ** whole < Fraction(distance, first) ** steps)


@pytest.mark.one_in(4)
@pytest.mark.parametrize(("first", "last", "steps"), PLACES)
def test_edges_are_those_of_fractions(first: int, last: int, steps: int) -> None:
    """Rounded down as in T5, and up as in DeBERTa, which asks for one edge more; for torch and NumPy."""
    distances = np.arange(last + 1 + (last - first) // 40)[:: max(1, (last - first) // 40)]
    for count, strict, whole in ((steps, False, floor_of), (steps + 1, True, ceil_of)):
        expected = [min(count, whole(int(distance), first, last, steps)) if distance > first else 0
                    for distance in distances]  # fmt: skip
        edges = log_edges(first, last, steps, count, strict=strict)
        assert np.searchsorted(edges, distances, side="right").tolist() == expected
        found = edges_reached(torch.from_numpy(distances), first, last, steps, count, strict=strict)
        assert found.tolist() == expected


def test_the_published_buckets_of_every_distance() -> None:
    """T5's own code computes in float32, and so does DeBERTa's. At the published sizes they round to the same edges."""
    offsets = torch.arange(-100_000, 100_001)
    for sizes in ((32, 128, True), (32, 128, False), (320, 800, True), (32, 256, True), (64, 256, True)):
        assert torch.equal(buckets(offsets, *sizes), t5_published(offsets, *sizes))
    found = _delta_of(Span(-100_000, 200_001), offsets.device, 512, 256, 512)
    assert torch.equal(found, (deberta_published(-offsets, 256, 512) + 256).clamp(0, 511))


def t5_published(offsets: Tensor, num_buckets: int, max_distance: int, bidirectional: bool) -> Tensor:
    """The rule of T5's published code, in float32."""
    size = num_buckets // 2 if bidirectional else num_buckets
    distance = offsets.abs() if bidirectional else -offsets.clamp(max=0)
    exact = size // 2
    steps = torch.log(distance.float() / exact) / math.log(max_distance / exact) * (size - exact)
    far = (exact + steps.clamp(min=0.0)).long().clamp(max=size - 1)
    return distance.where(distance < exact, far) + (size * (offsets > 0) if bidirectional else 0)


def deberta_published(relative: Tensor, num_buckets: int, max_distance: int) -> Tensor:
    """The rule of DeBERTa's published code, in float32."""
    middle, distance = num_buckets // 2, relative.abs()
    clipped = distance.clamp(min=middle - 1).where(distance >= middle, torch.tensor(middle - 1))
    steps = torch.log(clipped / middle) / torch.log(torch.tensor((max_distance - 1) / middle)) * (middle - 1)
    return relative.where(clipped <= middle, (torch.ceil(steps) + middle) * relative.sign()).long()


def test_graphs_hold_no_logarithm() -> None:
    """torch.export of T5's and DeBERTa's buckets compares whole numbers."""
    encodings = relattn.T5Bias(2), relattn.DisentangledEmbedding(2, 4, max_distance=512, num_buckets=256)
    for encoding in encodings:
        layer = relattn.nn.RelativeMultiheadAttention(8, 2, encoding)
        program = torch.export.export(
            layer, (torch.randn(1, 9, 8),), dynamic_shapes=({1: torch.export.Dim("L", min=2)},)
        )
        assert not any("log" in str(node.target) for node in program.graph.nodes)
