"""Axes before the heads that do not fit: of tensors, masks, positions and hand-made terms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from relattn import OffsetTable, ScoreTerms, ShapeError, attention_weights, explain, relative_attention
from tests.bad_input.refusal import call, ones, refused

Axes = tuple[int, ...]

EXPECTED = (
    "expected [..., heads, length, width], such as four axes [batch, heads, length, width]; give one head an axis of "
    "its own with .unsqueeze(-3)"
)


@pytest.mark.parametrize("function", [relative_attention, attention_weights, explain])
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"query": ones(5, 8)}, f"query: got shape [5, 8]; {EXPECTED}"),
        ({"key": ones(6, 8)}, f"key: got shape [6, 8]; {EXPECTED}"),
        (
            {"query": ones(3, 2, 4, 5, 8), "key": ones(4, 2, 4, 6, 8)},
            "key: got batch [4, 2] ([4, 2, 4, 6, 8]) beside query [3, 2, 4, 5, 8]; expected the same batch",
        ),
        (
            {"query": ones(2, 3, 4, 5, 8)},  # [2, 3] beside [2], which stands under the 3
            "key: got batch 2 ([2, 4, 6, 8]) beside query [2, 3, 4, 5, 8]; expected the same batch",
        ),
        (
            {"query": ones(1, 4, 5, 8), "value": ones(3, 4, 6, 8)},  # each fits the query's
            "value: got batch 3 ([3, 4, 6, 8]) beside key [2, 4, 6, 8]; expected the same batch",
        ),
        (
            {"query": ones(4, 5, 8), "value": ones(2, 3, 4, 6, 8)},
            "value: got batch [2, 3] ([2, 3, 4, 6, 8]) beside key [2, 4, 6, 8]; expected the same batch",
        ),
    ],
)
def test_axes_that_do_not_fit(function: Callable[..., Any], changes: dict[str, Tensor], said: str) -> None:
    with refused(ShapeError, said):
        call(function, **changes)


def masked(*size: int, dtype: torch.dtype = torch.bool) -> Tensor:
    return ones(*size, dtype=dtype)


@pytest.mark.parametrize(
    ("batch", "changes", "said"),
    [
        ((2, 3), {"key_mask": masked(6, 6)}, "key_mask: got shape [6, 6]; expected [2, 3, 6] (batch, key length)"),
        ((2, 3), {"key_mask": masked(3, 6)}, "key_mask: got shape [3, 6]; expected [2, 3, 6] (batch, key length)"),
        ((), {"key_mask": masked(1, 6)}, "key_mask: got shape [1, 6]; expected [6] (batch, key length)"),
        (
            (2, 3),
            {"segment_ids": (masked(2, 3, 5, dtype=torch.long), masked(6, 6, dtype=torch.long))},
            "segment_ids: got shape [6, 6] for the key side; expected [2, 3, 6]; give a pair...",
        ),
        (
            (2, 3),
            {"attn_mask": masked(2, 4, 5, 6)},
            "attn_mask: got shape [2, 4, 5, 6]; expected one that broadcasts to [2, 3, 4, 5, 6] (batch, heads, "
            "queries, keys)",
        ),
        (
            (),
            {"attn_mask": masked(1, 4, 5, 6)},
            "attn_mask: got shape [1, 4, 5, 6]; expected one that broadcasts to [4, 5, 6] (batch, heads, queries, "
            "keys)",
        ),
        (
            (2, 3),
            {"query_position": masked(6, 5, dtype=torch.long)},
            "query_position: got shape [6, 5]; expected a start, [5] or [2, 3, 5]",
        ),
    ],
)
def test_masks_and_positions_that_do_not_fit(batch: Axes, changes: dict[str, Any], said: str) -> None:
    query, key = ones(*batch, 4, 5, 8), ones(*batch, 4, 6, 8)
    with refused(ShapeError, said):
        relative_attention(query, key, key, **changes)


FULL = "expected [2, 3, heads, length, width], the axes of the call; .expand() what all of the batch shares"


@pytest.mark.parametrize(
    ("terms", "said"),
    [
        ({"query": ones(6, 4, 5, 8)}, f"terms query: got shape [6, 4, 5, 8]; {FULL}"),
        ({"query": ones(4, 5, 8)}, f"terms query: got shape [4, 5, 8]; {FULL}"),
        ({"key": ones(2, 4, 6, 8)}, f"terms key: got shape [2, 4, 6, 8]; {FULL}"),
        ({"key": ones(1, 3, 4, 6, 8)}, f"terms key: got shape [1, 3, 4, 6, 8]; {FULL}"),
        ({"key": ones(1, 2, 3, 4, 6, 8)}, f"terms key: got shape [1, 2, 3, 4, 6, 8]; {FULL}"),
        (
            {"relative_query": ones(4, 5), "relative_keys": OffsetTable(ones(1, 21, 8), -10)},
            f"relative_query: got shape [4, 5]; {FULL}",
        ),
        ({"key": ones(2, 3, 4, 7, 8)}, "terms key: got shape [6, 4, 7, 8]; expected [6, 4, 6, 8], for a rewritten..."),
    ],
)
def test_terms_that_do_not_fit(terms: dict[str, Any], said: str) -> None:
    query, key = ones(2, 3, 4, 5, 8), ones(2, 3, 4, 6, 8)
    with refused(ShapeError, said):
        relative_attention(query, key, key, encoding=ScoreTerms(**terms))


def test_terms_without_a_batch_axis_of_their_own() -> None:
    """A call without one takes none: a batch of one element is another shape."""
    query, key = ones(4, 5, 8), ones(4, 6, 8)
    said = "terms query: got shape [1, 4, 5, 8]; expected [heads, length, width], the axes of the call; ..."
    with refused(ShapeError, said):
        relative_attention(query, key, key, encoding=ScoreTerms(query=ones(1, 4, 5, 8)))
    with refused(ShapeError, "relative_query: got shape [8]; expected [heads, length, width], ..."):
        relative_attention(
            query, key, key, encoding=ScoreTerms(relative_query=ones(8), relative_keys=OffsetTable(ones(1, 21, 8), -10))
        )


@pytest.mark.parametrize("size", [(1, 4, 5, 8), (4, 5, 8), (3, 4, 5, 8)], ids=str)
def test_terms_of_another_batch(size: Axes) -> None:
    """The call's batch of 2 comes from its keys."""
    query, key = ones(1, 4, 5, 8), ones(2, 4, 6, 8)
    said = f"terms query: got shape {list(size)}; expected [2, 4, 5, 8], for a rewritten query keeps the shape"
    with refused(ShapeError, said):
        relative_attention(query, key, key, encoding=ScoreTerms(query=ones(*size)))
