"""Which keys are seen, and which queries see: what is found by sorting and by blocks, beside every pair written out."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from relattn.equation import visibility
from relattn.equation.mask import Mask
from relattn.equation.problem import Axis, Problem
from relattn.equation.visibility import Visibility
from relattn.positions.contiguous import ContiguousPositions
from relattn.positions.explicit import ExplicitPositions
from relattn.positions.position import Position
from relattn.positions.positions import Positions

BATCH, QUERY_HEADS, KEY_HEADS, KEYS = 2, 4, 2, 9


def random_mask(rng: np.random.Generator, queries: int, shape: tuple[int, ...], kind: str) -> Mask:
    """A mask of pairs of this shape, beside any other way of hiding pairs."""

    def coin() -> bool:
        return bool(rng.integers(2))

    def numbers(low: int, high: int, *size: int) -> torch.Tensor:
        return torch.from_numpy(rng.integers(low, high, size))

    def place(length: int) -> Position:
        sizes = ((length,), (BATCH, length))
        return (
            ContiguousPositions(int(rng.integers(8)))
            if coin()
            else ExplicitPositions(numbers(0, 9, *sizes[rng.integers(2)]))
        )

    lowest, highest = -int(rng.integers(4)) if coin() else None, int(rng.integers(2)) if coin() else None
    positions = Positions(place(queries), place(KEYS), queries, KEYS, torch.device("cpu"), lowest, highest)
    keep = torch.from_numpy(rng.random(shape) > 0.6)
    return Mask(
        positions,
        torch.from_numpy(rng.random((BATCH, KEYS)) > 0.3) if coin() else None,
        (numbers(0, 3, BATCH, queries), numbers(0, 3, BATCH, KEYS)) if coin() else None,
        keep if kind == "boolean" else torch.randn(shape).masked_fill(~keep, -torch.inf),
    )


@pytest.mark.parametrize("pairs", [1, 50, 2**22], ids=["row by row", "a few rows", "whole"])
@pytest.mark.parametrize("few", [0, 256], ids=["sorting", "all pairs"])
@pytest.mark.parametrize("kind", ["boolean", "float"])
@pytest.mark.parametrize("queries", [1, 7])
def test_every_mask(
    queries: int, kind: str, few: int, pairs: int, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(visibility, "FEW", few)
    monkeypatch.setattr(visibility, "PAIRS", pairs)
    of_keys, of_queries = (BATCH, KEY_HEADS, KEYS), (BATCH, QUERY_HEADS, queries)
    for _ in range(60):
        sizes = (BATCH, QUERY_HEADS, queries, KEYS)
        shape = tuple(size if rng.integers(2) else 1 for size in sizes)
        mask = random_mask(rng, queries, shape, kind)
        hidden = mask.hidden()
        assert hidden is not None
        seen = ~hidden.expand(sizes)
        found = Visibility.of(mask, BATCH, KEY_HEADS)
        assert found.keys is not None and found.queries is not None
        assert torch.equal(found.keys.expand(of_keys), seen.unflatten(1, (KEY_HEADS, -1)).any(dim=2).any(dim=-2))
        assert torch.equal(found.queries.expand(of_queries), seen.any(dim=-1))


@pytest.mark.parametrize(
    "place", [ContiguousPositions(0), ExplicitPositions(torch.arange(5))], ids=["from 0", "explicit"]
)
@pytest.mark.parametrize("limits", [(None, -2), (1, None), (3, 1), (-1, 1)], ids=str)
def test_limits_alone(limits: tuple[int | None, int | None], place: Position) -> None:
    """Axes of heads stand before the elements, as for every other mask."""
    mask = Mask(Positions(place, ContiguousPositions(1), 5, 7, torch.device("cpu"), *limits))
    hidden = mask.hidden()
    assert hidden is not None
    found, seen = Visibility.of(mask, BATCH, KEY_HEADS), ~hidden
    for side, expected in zip(found, (seen.any(dim=-2), seen.any(dim=-1)), strict=True):
        assert expected.all() if side is None else torch.equal(side, expected)


def test_a_mask_of_keys_alone_looks_at_no_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_) -> None:
        raise AssertionError("pairs were looked at")

    monkeypatch.setattr(visibility, "_by_blocks", refuse)
    length = visibility.FEW + 1
    positions = Positions(ContiguousPositions(0), ContiguousPositions(0), length, length, torch.device("cpu"), None, 0)
    of_keys = Mask(positions, pairs=torch.ones(BATCH, 1, 1, length, dtype=torch.bool))
    Visibility.of(of_keys, BATCH, KEY_HEADS)
    with pytest.raises(AssertionError, match="pairs were looked at"):
        Visibility.of(replace(of_keys, pairs=torch.ones(1, 1, length, length, dtype=torch.bool)), BATCH, KEY_HEADS)


def test_nothing_to_clean_leaves_the_problem_itself() -> None:
    positions, rows = (
        Positions(ContiguousPositions(0), ContiguousPositions(0), 3, 3, torch.device("cpu")),
        torch.zeros(1, 1, 3, 4),
    )
    problem = Problem(rows, rows, rows, (Axis(positions),), Mask(positions), 1.0, rows.dtype)
    assert Visibility().cleaned(problem) is problem
    seen = torch.tensor([[[True, False, True]]])
    assert Visibility(keys=seen).cleaned(problem) is not problem


@pytest.mark.parametrize("lowest", [None, -3, 0, 1])
@pytest.mark.parametrize("highest", [None, 2, 0, -1])
@pytest.mark.parametrize("start", [0, 1])
def test_one_tensor_of_segments_tells_that_queries_see_themselves(
    lowest: int | None, highest: int | None, start: int, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then nothing is sorted; and where each query may not see the key of its own place, what is found is right."""
    ids = torch.from_numpy(rng.integers(0, 3, (BATCH, KEYS)))
    positions = Positions(
        ContiguousPositions(0), ContiguousPositions(start), KEYS, KEYS, torch.device("cpu"), lowest, highest
    )
    mask = Mask(positions, segments=(ids, ids))
    apart = replace(mask, segments=(ids, ids.clone()))
    certain = start == 0 and (lowest or 0) <= 0 <= (highest or 0)
    assert mask.may_leave_out() == (not certain, not certain)
    assert apart.may_leave_out() == (True, True)
    hidden = mask.hidden()
    assert hidden is not None
    if certain:
        monkeypatch.setattr(visibility, "_by_sorting", lambda mask: pytest.fail("it sorts"))
        assert Visibility.of(mask, BATCH, 1) == Visibility()
        assert not hidden.all(dim=-1).any() and not hidden.all(dim=-2).any()
    else:
        found = Visibility.of(mask, BATCH, 1)
        assert found.keys is not None and found.queries is not None
        assert torch.equal(found.keys.expand(BATCH, 1, KEYS), ~hidden.all(dim=-2))
        assert torch.equal(found.queries.expand(BATCH, 1, KEYS), ~hidden.all(dim=-1))
