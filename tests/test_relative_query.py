"""The relative query r is the caller's own query where None says so, and only there; no tensor is known by identity."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from relattn import (
    OffsetTable,
    RelativeEmbedding,
    RelativeEncoding,
    ScoreTerms,
    ShawEmbedding,
    TransformerXLEmbedding,
    attention_and_lse,
    attention_weights,
    relative_attention,
)
from relattn.encodings.base import lower
from relattn.positions.contiguous import ContiguousPositions
from relattn.positions.places import Places
from relattn.positions.positions import Positions
from tests.contract.calls import assert_equal, gradients

HEADS, LENGTH, WIDTH = 2, 5, 4
ROWS = 2 * LENGTH - 1

every_backend = pytest.mark.parametrize("backend", ["dense", "blocks", "reference"])


def normal(*size: int) -> Tensor:
    return torch.randn(size, dtype=torch.float64, requires_grad=True)


def table(values: Tensor) -> OffsetTable:
    return OffsetTable(values, 1 - LENGTH)


@pytest.fixture
def inputs() -> list[Tensor]:
    return [normal(2, HEADS, LENGTH, WIDTH) for _ in range(3)]


def by_pairs(rows: Tensor) -> Tensor:
    """The row of every pair's offset, [heads, LENGTH, LENGTH, ...]."""
    positions = torch.arange(LENGTH)
    return rows[:, positions - positions.unsqueeze(-1) + LENGTH - 1]


@every_backend
def test_the_query_itself_is_as_good_as_none(backend: str, inputs: list[Tensor]) -> None:
    """The very tensor that the call takes for its query, where nothing rewrites it: answers and gradients."""
    rows = normal(HEADS, ROWS, WIDTH)
    silent, explicit = (
        attention_and_lse(
            *inputs,
            encoding=ScoreTerms(relative_query=r, relative_keys=table(rows)),
            backend=backend,
            is_causal=True,
        )
        for r in (None, inputs[0])
    )
    assert_equal(silent, explicit)
    assert_equal(gradients(silent, [*inputs, rows]), gradients(explicit, [*inputs, rows]))


def test_the_rewritten_query_is_another(inputs: list[Tensor]) -> None:
    """terms.query and terms.relative_query of one tensor: r is that tensor, as given."""
    query, key, value = inputs
    other, rows = normal(2, HEADS, LENGTH, WIDTH), normal(HEADS, ROWS, WIDTH)
    terms = ScoreTerms(query=other, relative_query=other, relative_keys=table(rows))
    scores = other @ key.mT + torch.einsum("bhid,hijd->bhij", other, by_pairs(rows))
    expected = (scores * WIDTH**-0.5).softmax(-1)
    assert_equal(attention_weights(query, key, value, encoding=terms), expected)
    assert_equal(relative_attention(query, key, value, encoding=terms), expected @ value)


class Named(RelativeEncoding):
    """Somebody else's: relative keys over the caller's query, which it hands back as a tensor."""

    def __init__(self, rows: Tensor) -> None:
        super().__init__()
        self.rows = torch.nn.Parameter(rows.detach().clone())

    def terms(self, query: Tensor, key: Tensor, positions: Positions) -> ScoreTerms:
        return ScoreTerms(relative_query=query, relative_keys=table(self.rows))


@every_backend
def test_two_over_the_callers_query_beside_transformer_xl(backend: str, inputs: list[Tensor]) -> None:
    """S = scale * ((q + u) . k + q . (A + B) + (q + v) . W R), with A and B over q although q is rewritten."""
    query, key, value = inputs
    a, b = RelativeEmbedding(WIDTH, LENGTH).double(), ShawEmbedding(WIDTH, LENGTH - 1, values=False).double()
    xl = TransformerXLEmbedding(HEADS, WIDTH).double()
    with torch.no_grad():
        for parameter in (*a.parameters(), *b.parameters(), *xl.parameters()):
            parameter.normal_()
    positions = Positions(ContiguousPositions(0), ContiguousPositions(0), LENGTH, LENGTH, query.device)
    scores = lower(xl, query, key, value, Places(positions)).query @ key.mT
    for encoding in (a, b, xl):
        terms = lower(encoding, query, key, value, Places(positions))
        r, keys = query if terms.relative_query is None else terms.relative_query, terms.relative_keys
        assert (keys.first, keys.num_rows) == (1 - LENGTH, ROWS)
        scores = scores + torch.einsum("bhid,hijd->bhij", r, by_pairs(keys.values).expand(HEADS, -1, -1, -1))
    expected = (scores * WIDTH**-0.5).softmax(-1) @ value
    for encoding in (a + b + xl, xl + a + b, a + xl + b):
        output = relative_attention(*inputs, encoding=encoding, backend=backend)
        assert_equal(output, expected)
        r = lower(encoding, query, key, value, Places(positions)).relative_query
        assert r.shape[-1] == 2 * WIDTH  # A + B over q, then W R over q + v
    leaves = [*inputs, *a.parameters(), *b.parameters()]
    assert_equal(gradients((output,), leaves), gradients((expected,), leaves))


@every_backend
def test_an_encoding_that_names_the_query_sums_as_one_that_does_not(backend: str, inputs: list[Tensor]) -> None:
    """Its r is the query's tensor; joined or added, the scores are the same."""
    rows, shaw = normal(HEADS, ROWS, WIDTH), ShawEmbedding(WIDTH, 2, values=False).double()
    silent = RelativeEmbedding(WIDTH, LENGTH, num_heads=HEADS).double()
    with torch.no_grad():
        shaw.relative_keys.normal_()
        silent.relative_keys.copy_(rows)
    expected = relative_attention(*inputs, encoding=silent + shaw, backend=backend)
    for encoding in (Named(rows) + shaw, shaw + Named(rows)):
        assert_equal(relative_attention(*inputs, encoding=encoding, backend=backend), expected)


def summed(*relative_queries: Tensor | None, rows: list[Tensor]) -> ScoreTerms:
    first, second = (
        ScoreTerms(relative_query=r, relative_keys=table(one)) for r, one in zip(relative_queries, rows, strict=True)
    )
    return first + second


def test_two_over_the_callers_query_add() -> None:
    rows = [normal(HEADS, ROWS, WIDTH) for _ in range(2)]
    total = summed(None, None, rows=rows)
    assert total.relative_query is None
    assert total.relative_keys is not None
    assert_equal(total.relative_keys.values, rows[0] + rows[1])


@pytest.mark.parametrize("same", [True, False], ids=["one tensor", "two tensors"])
def test_others_are_joined(same: bool, inputs: list[Tensor]) -> None:
    """Along the feature axis, also where both are one tensor: it is the same score, and no tensor is compared."""
    query, other = inputs[0], inputs[0] if same else normal(2, HEADS, LENGTH, WIDTH)
    rows = [normal(HEADS, ROWS, WIDTH) for _ in range(2)]
    total = summed(query, other, rows=rows)
    assert total.relative_query is not None
    assert total.relative_keys is not None
    assert_equal(total.relative_query, torch.cat([query, other], -1))
    assert_equal(total.relative_keys.values, torch.cat(rows, -1))
    if same:
        added = summed(None, None, rows=rows)
        ours: Any = attention_and_lse(*inputs, encoding=total)
        assert_equal(ours, attention_and_lse(*inputs, encoding=added))
