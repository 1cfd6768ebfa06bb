"""Tables that refuse ask for the offsets that are visible, segments included."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from relattn import OffsetTable, RelativeEmbedding, ScoreTerms, TransformerXLEmbedding, relative_attention
from relattn.backends.select import BACKENDS
from relattn.equation.mask import Mask
from relattn.equation.visibility import within_segments
from relattn.nn import RelativeMultiheadAttention
from relattn.positions.contiguous import ContiguousPositions
from relattn.positions.positions import Positions

HEADS, WIDTH, LENGTH = 2, 8, 8
IDS = torch.arange(3 * LENGTH)[None] // LENGTH
TABLES: dict[str, Callable[[int], Any]] = {
    "RelativeEmbedding": lambda length: RelativeEmbedding(WIDTH, length, num_heads=HEADS),
    "TransformerXLEmbedding": lambda length: TransformerXLEmbedding(HEADS, WIDTH, max_length=length),
    "ScoreTerms": lambda length: ScoreTerms(
        relative_keys=OffsetTable(torch.ones(1, 2 * length - 1, WIDTH), 1 - length, "error")
    ),
}


def inputs(length: int) -> list[torch.Tensor]:
    return [torch.randn(1, HEADS, length, WIDTH) for _ in range(3)]


@pytest.mark.parametrize("backend", ["auto", *(name for name in BACKENDS if name not in ("sdpa", "triton"))])
@pytest.mark.parametrize("table", TABLES)
def test_rows_for_the_longest_document_suffice(table: str, backend: str) -> None:
    """A row fewer is refused, and the sentence says which offsets are visible."""
    packed, encoding = inputs(3 * LENGTH), TABLES[table](LENGTH)
    output = relative_attention(*packed, encoding=encoding, segment_ids=IDS, backend=backend)
    parts = [tensor.split(LENGTH, 2) for tensor in packed]
    alone = [relative_attention(*part, encoding=encoding) for part in zip(*parts, strict=True)]
    torch.testing.assert_close(output, torch.cat(alone, 2))
    with pytest.raises(ValueError, match=r"got visible offsets -7\.\.7 .*and rows for -6\.\.6"):
        relative_attention(*packed, encoding=TABLES[table](LENGTH - 1), segment_ids=IDS)


def test_causal_rows_suffice_beside_causality() -> None:
    encoding = RelativeEmbedding(WIDTH, LENGTH, num_heads=HEADS, causal=True)
    packed = inputs(3 * LENGTH)
    assert relative_attention(*packed, encoding=encoding, segment_ids=IDS, is_causal=True).isfinite().all()
    with pytest.raises(ValueError, match=r"visible offsets -7\.\.7"):
        relative_attention(*packed, encoding=encoding, segment_ids=IDS)


def test_ids_that_come_back_need_all_that_lies_between() -> None:
    encoding = RelativeEmbedding(WIDTH, LENGTH, num_heads=HEADS)
    with pytest.raises(ValueError, match=r"visible offsets -23\.\.23"):
        relative_attention(*inputs(3 * LENGTH), encoding=encoding, segment_ids=IDS % 2)


def test_ids_without_numbers_are_refused_as_before() -> None:
    encoding = RelativeEmbedding(WIDTH, LENGTH, num_heads=HEADS).to("meta")
    packed = [tensor.to("meta") for tensor in inputs(3 * LENGTH)]
    with pytest.raises(ValueError, match=r"visible offsets -23\.\.23"):
        relative_attention(*packed, encoding=encoding, segment_ids=IDS.to("meta"))
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, pytest.raises(ValueError, match=r"offsets -23\.\.23"):
        made = [mode.from_tensor(tensor) for tensor in inputs(3 * LENGTH)]
        encoding = RelativeEmbedding(WIDTH, LENGTH, num_heads=HEADS)
        relative_attention(*made, encoding=encoding, segment_ids=mode.from_tensor(IDS))


def test_a_layer_trains_on_packed_documents() -> None:
    layer = RelativeMultiheadAttention(HEADS * WIDTH, HEADS, encoding=RelativeEmbedding(WIDTH, LENGTH, num_heads=HEADS))
    features = torch.randn(1, 3 * LENGTH, HEADS * WIDTH)
    output = layer(features, segment_ids=IDS)
    output.sum().backward()
    alone = torch.cat([layer(part) for part in features.split(LENGTH, 1)], 1)
    torch.testing.assert_close(output, alone)
    assert all(isinstance(one, nn.Parameter) and one.grad is not None for one in layer.parameters())


def test_the_limits_are_those_of_the_pairs(rng: np.random.Generator) -> None:
    """Of any documents, lengths, starts and windows: the smallest and the largest offset of a visible pair.

    Where ids go back, no smaller range.
    """
    for _ in range(60):
        queries, keys, origin = int(rng.integers(1, 12)), int(rng.integers(1, 12)), int(rng.integers(-5, 6))
        ids, in_order = [rng.integers(0, 5, (2, length)) for length in (queries, keys)], bool(rng.integers(2))
        ids = [np.sort(side) for side in ids] if in_order else ids
        left, right = (None if rng.integers(2) else int(rng.integers(9)) for _ in range(2))
        window = None if left is None else -left, right
        positions = Positions(
            ContiguousPositions(0), ContiguousPositions(origin), queries, keys, torch.device("cpu"), *window
        )
        closer = within_segments(Mask(positions, segments=(torch.from_numpy(ids[0]), torch.from_numpy(ids[1]))))
        offsets = np.broadcast_to(origin + np.arange(keys) - np.arange(queries)[:, None], (2, queries, keys))
        seen = offsets[ids[0][:, :, None] == ids[1][:, None, :]]
        if seen.size == 0:
            assert closer is None or not in_order
            continue
        first = seen.min() if window[0] is None else max(seen.min(), window[0])
        last = seen.max() if window[1] is None else min(seen.max(), window[1])
        if first <= last:
            lowest, highest = (positions if closer is None else closer).visible
            assert (lowest, highest) == (first, last) if in_order else lowest <= first <= last <= highest
