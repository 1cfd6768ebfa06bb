"""Grids in tiles: digits on both sides are read through strides, and give what every pair looked up gives.

Held against the reference backend in float64, whose offsets are written out pair by pair.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from relattn import GridPositions, attention_and_lse, grid, relative_attention
from relattn.backends import dense
from relattn.backends.sums import apart
from relattn.backends.tiled import operator, scores
from relattn.backends.tiled.bands import GridOffsets, PairBand
from relattn.backends.tiled.sizes import TileSizes
from relattn.equation.tables import OffsetTable
from relattn.equation.terms import ScoreTerms
from relattn.positions.boxes import boxes, units
from relattn.positions.contiguous import ContiguousPositions
from relattn.positions.position import Position
from relattn.positions.positions import Positions
from tests import seeds

pytestmark = pytest.mark.one_in(2)

TILES = (TileSizes(3, 5, 2), TileSizes(7, 4, 1), TileSizes(64, 64, 2))
KINDS = ("relative_keys", "relative_queries", "relative_values", "bias")
WIDTH = 5


@dataclass(frozen=True)
class Sides:
    """Where queries and keys stand on the axes beside the sequence, and how many there are."""

    query: Mapping[str, Position]
    key: Mapping[str, Position]
    query_length: int
    key_length: int


def of_grid(*sizes: int, prefix_tokens: int = 0, queries: tuple[int, int] | None = None) -> Sides:
    """A whole grid as keys, and as queries the whole or a part: (first, length)."""
    whole = grid(*sizes, prefix_tokens=prefix_tokens)
    length = prefix_tokens + torch.Size(sizes).numel()
    first, count = queries or (0, length)
    return Sides(grid(*sizes, prefix_tokens=prefix_tokens, first=first, length=count), whole, count, length)


def digits(*terms: tuple[int, int, int], **others: int) -> dict[str, GridPositions]:
    """One axis, "y"."""
    return {"y": GridPositions(terms, **others)}


SIDES = {
    "a grid": of_grid(4, 6),
    "rows longer than a tile": of_grid(2, 13),
    "a class token before the grid": of_grid(3, 4, prefix_tokens=1),
    "three tokens before the grid": of_grid(3, 3, prefix_tokens=3),
    "frames": of_grid(2, 3, 4),
    "a part of the frames": of_grid(3, 2, 4, prefix_tokens=1, queries=(5, 13)),
    "the prefix tokens alone ask": of_grid(3, 4, prefix_tokens=2, queries=(0, 2)),
    "one query": of_grid(3, 5, queries=(8, 1)),
    "queries of another grid": Sides(grid(2, 3), grid(4, 5), 6, 20),
    "steps": Sides(digits((3, 2, 4), start=5), digits((2, 1, 6)), 11, 14),
    "two digits that overlap": Sides(digits((1, 1, 3), (1, 3, 4)), digits((1, 1, 4), (2, 4, 3)), 12, 12),
    "a grid that starts anew": Sides(digits((1, 2, 3), first=3), digits((1, 1, 4), first=2), 17, 15),
    "a run beside a grid": Sides({"y": ContiguousPositions(2)}, digits((1, 2, 5)), 7, 10),
    "digits of no order": Sides(digits((1, 2, 5), (3, 3, 4)), digits((1, 1, 8)), 12, 8),
    "backward steps": Sides(digits((-1, 1, 4)), digits((1, 1, 4)), 8, 8),
    "steps that leave wide gaps": Sides(digits((5000, 3, 4)), digits((5000, 2, 4)), 9, 8),
}
LOOKED_UP = {"digits of no order", "backward steps", "steps that leave wide gaps"}


def terms_of(
    sides: Sides, kinds: tuple[str, ...], beyond: str, *, shared: bool, own_r: bool
) -> tuple[ScoreTerms, list]:
    """Tables on every axis, two heads or one for all, and what gradients are asked of."""
    terms, leaves = ScoreTerms(), []
    for axis in sides.key:
        tables: dict[str, Any] = {}
        r = None
        first = -2 if axis != "x" else -30
        count = 4 if axis != "x" else 60
        for kind in kinds:
            shape = (1 if shared else 4, count) + (() if kind == "bias" else (WIDTH,))
            leaves.append(torch.randn(shape, dtype=torch.float64, requires_grad=True))
            tables[kind] = OffsetTable(leaves[-1], first, beyond)  # pyright: ignore[reportArgumentType]
        if own_r and "relative_keys" in kinds:
            r = torch.randn(2, 4, sides.query_length, WIDTH, dtype=torch.float64, requires_grad=True)
            leaves.append(r)
        terms = terms + ScoreTerms(relative_query=r, **tables).on(axis)
    return terms, leaves


def answers(sides: Sides, terms: ScoreTerms, leaves: list[Tensor], backend: str, **others: Any) -> list[Tensor]:
    """Output, lse, and every gradient, with two query heads for a key head and two batch elements."""
    generator = seeds.torch_generator("answers")

    def normal(heads: int, length: int) -> Tensor:
        return torch.randn(2, heads, length, WIDTH, dtype=torch.float64, generator=generator).requires_grad_()

    query, key, value = normal(4, sides.query_length), normal(2, sides.key_length), normal(2, sides.key_length)
    output, lse = attention_and_lse(
        query, key, value, encoding=terms, backend=backend, enable_gqa=True,
        query_position=sides.query, key_position=sides.key, **others,
    )  # fmt: skip
    upstream = [torch.randn(each.shape, dtype=torch.float64, generator=generator) for each in (output, lse)]
    gradients = torch.autograd.grad((output, lse), [query, key, value, *leaves], upstream)
    return [output, lse, *gradients]


def assert_same(sides: Sides, terms: ScoreTerms, leaves: list[Tensor], backend: str, **others: Any) -> None:
    """The backend's answers are the reference's."""
    found = answers(sides, terms, leaves, backend, **others)
    for one, other in zip(found, answers(sides, terms, leaves, "reference", **others), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-12)


@pytest.fixture(params=TILES, ids=str)
def tiles(request, monkeypatch: pytest.MonkeyPatch) -> TileSizes:
    """Tiles that a few positions cross."""
    monkeypatch.setattr(operator, "tile_sizes", lambda problem: request.param)
    return request.param


@pytest.mark.pairs
@pytest.mark.parametrize("beyond", ["clamp", "zero"])
@pytest.mark.parametrize("name", SIDES)
def test_tiles_of_a_grid_are_the_reference(name: str, beyond: str, tiles, rng) -> None:
    """All four tables on every axis at once, shared by the heads and with r, then one per head without."""
    terms, leaves = terms_of(SIDES[name], KINDS, beyond, shared=beyond == "zero", own_r=beyond == "clamp")
    assert_same(SIDES[name], terms, leaves, "tiled")


@pytest.mark.parametrize("name", SIDES)
def test_offsets_of_a_grid_are_not_written_out(name: str, monkeypatch: pytest.MonkeyPatch, rng) -> None:
    """No pair looks its row up, but where steps do not allow for boxes."""
    seen = []
    for which in ("spread", "collect"):
        whole = getattr(PairBand, which)
        monkeypatch.setattr(PairBand, which, lambda *given, whole=whole: (seen.append(1), whole(*given)))
    terms, leaves = terms_of(SIDES[name], KINDS, "zero", shared=True, own_r=False)
    answers(SIDES[name], terms, leaves, "tiled")
    assert bool(seen) == (name in LOOKED_UP)


@pytest.mark.parametrize("kind", KINDS)
def test_joint_tables_are_the_reference(kind: str, tiles, rng) -> None:
    """A table over both axes, with a class token: positions y * 11 + x, as GridBias has them."""
    joint = {"y": GridPositions(((11, 6, 4), (1, 1, 6)), prefix_tokens=1, off_grid=2**40)}
    sides = Sides(joint, joint, 25, 25)
    values = torch.randn((1, 77) if kind == "bias" else (4, 77, WIDTH), dtype=torch.float64, requires_grad=True)
    table: dict[str, Any] = {kind: OffsetTable(values, -38, "clamp")}
    assert_same(sides, ScoreTerms(**table).on("y"), [values], "tiled")


@pytest.mark.parametrize("others", [{"is_causal": True}, {"window": (5, 3)}], ids=str)
def test_limits_on_the_sequence_cut_grids_anywhere(others: dict[str, Any], tiles, rng) -> None:
    terms, leaves = terms_of(SIDES["frames"], KINDS, "clamp", shared=False, own_r=True)
    assert_same(SIDES["frames"], terms, leaves, "tiled", **others)


def listed(place: Position, length: int) -> list[int]:
    """Every position."""
    return place.expand(length, torch.device("cpu")).tolist()


def of_boxes(place: ContiguousPositions | GridPositions, length: int) -> list[int]:
    """Every position, as boxes tell it."""
    found = []
    for box in boxes(place, length):
        assert box.start == len(found)
        positions = [box.position]
        for size, step in zip(box.sizes, box.steps, strict=True):
            positions = [before + step * digit for before in positions for digit in range(size)]
        found += positions
        assert positions[-1] == box.position + box.reach
    return found


def test_boxes_tell_every_position() -> None:
    """Of any digits whose units divide one another, from any first element on."""
    drawn, tried = random.Random(seeds.seed("boxes")), 0
    while tried < 500:
        terms = tuple(
            (drawn.randint(0, 4), drawn.choice([1, 2, 3, 4, 6]), drawn.randint(1, 4))
            for _ in range(drawn.randint(0, 3))
        )
        place = GridPositions(
            terms, start=drawn.randint(-3, 3), first=drawn.randint(0, 30), prefix_tokens=drawn.randint(0, 2)
        )
        if units(place) is not None:
            length, tried = drawn.randint(0, 60), tried + 1
            assert of_boxes(place, length) == listed(place, length), (place, length)


@pytest.mark.parametrize("steps", [(1, 4), (4, 1), (1, 3), (1, 1), (2, 2, 1), (6, 2, 1), (3, 3, 3)], ids=str)
def test_sums_in_parts_never_meet(steps: tuple[int, ...]) -> None:
    """Two elements of one part at one place would be a race between threads. All parts together are the whole."""
    shape = (4, 2, 3)[: len(steps)]
    memory, values = torch.arange(100), torch.arange(torch.Size(shape).numel()).view(shape)
    seen = []
    for part, into in apart(values, memory.as_strided(shape, steps), [(step, n) for n, step in enumerate(steps)]):
        places = into.flatten().tolist()
        assert len(set(places)) == len(places)
        seen += part.flatten().tolist()
    assert sorted(seen) == values.flatten().tolist()


def test_a_whole_grid_is_one_box() -> None:
    """However large: its parts in tiles are as few."""
    for axis, steps in {"t": (1, 0), "y": (0, 1, 0), "x": (0, 1)}.items():
        (box,) = boxes(grid(16, 64, 64)[axis], 16 * 64 * 64)  # pyright: ignore[reportArgumentType]
        assert box.steps == steps


BREAKS: dict[str, Callable[[GridOffsets], GridOffsets]] = {
    "queries one element late": lambda whole: whole._replace(query=replace(whole.query, first=whole.query.first + 1)),  # pyright: ignore
    "keys one element late": lambda whole: whole._replace(key=replace(whole.key, first=whole.key.first + 1)),  # pyright: ignore
}


@pytest.mark.parametrize("name", BREAKS)
def test_these_tests_see_a_grid_in_the_wrong_place(name: str, monkeypatch: pytest.MonkeyPatch, rng) -> None:
    whole = scores.QueryTile._offsets_on

    def broken(*given):
        found = whole(*given)
        return BREAKS[name](found) if isinstance(found, GridOffsets) else found

    monkeypatch.setattr(scores.QueryTile, "_offsets_on", broken)
    terms, leaves = terms_of(SIDES["a grid"], KINDS, "clamp", shared=True, own_r=False)
    with pytest.raises(AssertionError):
        assert_same(SIDES["a grid"], terms, leaves, "tiled")


@pytest.mark.parametrize("beyond", ["clamp", "zero"])
@pytest.mark.parametrize("name", SIDES)
def test_a_dense_grid_is_the_reference(name: str, beyond: str, rng) -> None:
    terms, leaves = terms_of(SIDES[name], KINDS, beyond, shared=beyond == "zero", own_r=beyond == "clamp")
    assert_same(SIDES[name], terms, leaves, "dense")


@pytest.mark.parametrize("kind", KINDS)
def test_a_dense_joint_table_is_the_reference(kind: str, rng) -> None:
    joint = {"y": GridPositions(((11, 6, 4), (1, 1, 6)), prefix_tokens=1, off_grid=2**40)}
    sides = Sides(joint, joint, 25, 25)
    values = torch.randn((1, 77) if kind == "bias" else (4, 77, WIDTH), dtype=torch.float64, requires_grad=True)
    table: dict[str, Any] = {kind: OffsetTable(values, -38, "clamp")}
    assert_same(sides, ScoreTerms(**table).on("y"), [values], "dense")


@pytest.mark.parametrize("name", SIDES)
def test_dense_looks_no_pair_up_on_a_grid(name: str, monkeypatch: pytest.MonkeyPatch, rng) -> None:
    seen = []
    whole = Positions.offsets
    monkeypatch.setattr(Positions, "offsets", lambda positions: (seen.append(1), whole(positions))[1])
    terms, leaves = terms_of(SIDES[name], KINDS, "zero", shared=True, own_r=False)
    answers(SIDES[name], terms, leaves, "dense")
    assert bool(seen) == (name in LOOKED_UP)


def first_and_second(sides: Sides, backend: str) -> tuple[list[Tensor], list[Tensor]]:
    """Gradients of a dense call by its tables, three upstreams at once, and of the sum of their squares."""
    seeds.start_torch("first and second")
    terms, leaves = terms_of(sides, KINDS, "clamp", shared=False, own_r=False)
    query, key, value = (
        torch.randn(1, 4, n, WIDTH, dtype=torch.float64) for n in (sides.query_length, *(2 * [sides.key_length]))
    )
    output = relative_attention(
        query, key, value, encoding=terms, backend=backend, query_position=sides.query, key_position=sides.key
    )
    upstream = torch.randn(3, *output.shape, dtype=torch.float64)
    if backend == "dense":
        batched = list(torch.autograd.grad(output, leaves, upstream, is_grads_batched=True, retain_graph=True))
    else:
        each = [torch.autograd.grad(output, leaves, one, retain_graph=True) for one in upstream]
        batched = [torch.stack(of_leaf) for of_leaf in zip(*each, strict=True)]
    first = torch.autograd.grad(output, leaves, upstream[0], create_graph=True)
    loss = sum((one.square().sum() for one in first), start=torch.zeros((), dtype=torch.float64))
    return batched, list(torch.autograd.grad(loss, leaves))


@pytest.mark.parametrize(
    "name", ["a class token before the grid", "two digits that overlap", "queries of another grid"]
)
def test_a_dense_grid_has_batched_and_second_gradients(name: str, rng) -> None:
    for found, true in zip(
        first_and_second(SIDES[name], "dense"), first_and_second(SIDES[name], "reference"), strict=True
    ):
        for one, other in zip(found, true, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


def test_many_scores_give_way_to_their_softmax(monkeypatch: pytest.MonkeyPatch, rng) -> None:
    """A few heads at a time; lse is that of the scores."""
    query, key, value = torch.randn(3, 2, 3, 7, 4)
    whole = attention_and_lse(query, key, value, backend="dense")
    monkeypatch.setattr(dense, "MANY_SCORES", 60)
    for one, other in zip(attention_and_lse(query, key, value, backend="dense"), whole, strict=True):
        torch.testing.assert_close(one, other, rtol=0.0, atol=0.0)
