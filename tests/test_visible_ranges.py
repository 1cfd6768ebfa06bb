"""Visible ranges beside the pairs written out: nothing outside is visible, and what is in order has no more inside."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from relattn.equation.mask import Mask
from relattn.equation.visible_blocks import SIZE
from relattn.equation.visible_ranges import VisibleRanges
from relattn.positions.explicit import ExplicitPositions
from relattn.positions.positions import Positions
from tests.test_visible_blocks import mask_of

LENGTHS = (1, 7, SIZE, 2 * SIZE + 20)
NUMBERS = torch.iinfo(torch.int64)


def ranges_of(mask: Mask, *, has_bias: bool) -> VisibleRanges:
    ranges = VisibleRanges.of(mask, has_bias=has_bias)
    assert ranges is not None
    return ranges


def pairs_of(mask: Mask) -> np.ndarray:
    """[B, H, Lq, Lk]."""
    hidden = mask.hidden()
    assert hidden is not None
    queries, keys = mask.positions.query_length, mask.positions.key_length
    return ~hidden.expand(*hidden.shape[:2], queries, keys).numpy()


def ends(seen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of each row [..., n] that sees something: the first that is seen, and the one after the last."""
    return seen.argmax(-1), seen.shape[-1] - seen[..., ::-1].argmax(-1)


def check(mask: Mask, *, exact: bool, has_bias: bool = False) -> None:
    """Every range holds what its row sees; exact: and it ends there."""
    ranges, seen = ranges_of(mask, has_bias=has_bias), pairs_of(mask)
    for found, rows in ((ranges.keys, seen), (ranges.queries, np.swapaxes(seen, -1, -2))):
        assert found.dtype == torch.int32 and found.shape[-2:] == (rows.shape[-2], 2)
        first, end = np.broadcast_to(found.numpy(), (*rows.shape[:-1], 2)).transpose(3, 0, 1, 2)
        (expected_first, expected_end), any_is = ends(rows), rows.any(-1)
        assert (first <= expected_first)[any_is].all() and (end >= expected_end)[any_is].all()
        if exact:
            np.testing.assert_array_equal(first[any_is], expected_first[any_is])
            np.testing.assert_array_equal(end[any_is], expected_end[any_is])
            assert (first >= end)[~any_is].all()


def in_order(rng: np.random.Generator, length: int, count: int) -> np.ndarray:
    """[3, length]: numbers of documents that never go back."""
    return np.sort(rng.integers(-count, count, (3, length)))


def at_either_end(rng: np.random.Generator, keys: int) -> Tensor:
    """[3, keys]: padding on the right, on the left, and nothing but padding."""
    place, at = np.arange(keys), int(rng.integers(keys))
    return torch.from_numpy(np.stack([place <= at, place >= at, place < 0]))


@pytest.mark.parametrize("queries", LENGTHS)
@pytest.mark.parametrize("keys", LENGTHS)
def test_documents_in_order_and_padding(queries: int, keys: int, rng: np.random.Generator) -> None:
    """Ids of both sides are drawn apart, so some have no key; all of the numbers of int64 may be ids."""
    sides = torch.from_numpy(in_order(rng, queries, 4)), torch.from_numpy(in_order(rng, keys, 4))
    kept = at_either_end(rng, keys)
    check(mask_of(queries, keys, key_mask=kept), exact=True)
    check(mask_of(queries, keys, segments=sides), exact=True)
    check(mask_of(queries, keys, segments=(sides[0].int(), sides[1])), exact=True)
    far, far_keys = (torch.where(ids == 3, NUMBERS.max, torch.where(ids == -4, NUMBERS.min, ids)) for ids in sides)
    check(mask_of(queries, keys, segments=(far, far_keys)), exact=True)
    check(mask_of(queries, keys, segments=(far, far_keys), key_mask=kept), exact=False)


def test_padded_documents_end_at_the_last_key_that_is_there() -> None:
    ids = torch.tensor([[0, 0, 0, 1, 1, 2, 2, 2]])
    kept = torch.tensor([[False, True, True, True, True, True, False, False]])
    check(mask_of(8, 8, segments=(ids, ids), key_mask=kept), exact=True)


@pytest.mark.parametrize("limits", [(None, 0), (-2, None), (-3, 1), (2, 1), (40, None), (None, None)], ids=str)
@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("ordered", [True, False], ids=["in order", "in any order"])
def test_limits_on_explicit_positions(
    ordered: bool, rows: int, limits: tuple[int | None, int | None], rng: np.random.Generator
) -> None:
    """Positions of one side may be the same for the batch."""
    places = [rng.integers(-9, 10, (number, length)) for number, length in ((rows, 50), (1, 70))]
    query, key = (ExplicitPositions(torch.from_numpy(np.sort(one) if ordered else one)) for one in places)
    mask = Mask(Positions(query, key, 50, 70, torch.device("cpu"), *limits))
    if limits == (None, None):
        assert VisibleRanges.of(mask, has_bias=False) is None
        return
    check(mask, exact=ordered)
    kept = torch.from_numpy(rng.random((rows, 70)) < 0.5)
    check(replace(mask, key_mask=kept), exact=False)


@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_visible_lies_inside(seed: int, rng: np.random.Generator) -> None:
    """Documents that come back, holes in a key mask, masks of pairs: all of them together."""
    queries, keys = (int(rng.choice(LENGTHS)) for _ in range(2))
    given = {}
    if seed % 2:
        sides = rng.integers(0, 4, (2, queries)), rng.integers(0, 4, (2, keys))
        given["segments"] = tuple(torch.from_numpy(ids) for ids in sides)
    if seed % 3:
        given["key_mask"] = torch.from_numpy(rng.random((2, keys)) < 0.2)
    if seed % 5 or not given:
        shape = [size if rng.random() < 0.7 else 1 for size in (2, 3, queries, keys)]
        given["pairs"] = torch.from_numpy(rng.random(shape) < 0.02)
        if seed % 4 == 0:
            given["pairs"] = torch.where(given["pairs"], 0.5, -torch.inf)
    check(mask_of(queries, keys, **given), exact=False)


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32], ids=str)
def test_a_mask_of_pairs_begins_and_ends_with_its_blocks(dtype: torch.dtype) -> None:
    """Of its own heads; rows of blocks that see nothing have no range."""
    seen = torch.zeros(1, 2, 3 * SIZE, 4 * SIZE, dtype=torch.bool)
    seen[:, 0, SIZE + 5, 70] = seen[:, 0, SIZE + 9, 130] = seen[:, 1, -1, -1] = True
    pairs = seen if dtype == torch.bool else torch.zeros(seen.shape).masked_fill(~seen, -torch.inf)
    keys, queries = ranges_of(mask_of(3 * SIZE, 4 * SIZE, pairs=pairs), has_bias=False)
    assert keys.shape == (1, 2, 3 * SIZE, 2) and queries.shape == (1, 2, 4 * SIZE, 2)
    for head, of_blocks in enumerate(([None, (1, 3), None], [None, None, (3, 4)])):
        for row, expected in zip(keys[0, head].tolist(), (one for one in of_blocks for _ in range(SIZE)), strict=True):
            assert (row[0] >= row[1]) if expected is None else row == [SIZE * end for end in expected]
    assert queries[0, 0, SIZE].tolist() == [SIZE, 2 * SIZE] and queries[0, 1, -1].tolist() == [2 * SIZE, 3 * SIZE]


def test_masks_together_leave_what_every_one_leaves() -> None:
    """Padding up to key 70, and a mask of pairs that hides all keys from 128 on."""
    place = torch.arange(3 * SIZE)
    pairs = (place < 2 * SIZE).expand(1, 1, 3 * SIZE, 3 * SIZE)
    ranges = ranges_of(mask_of(3 * SIZE, 3 * SIZE, key_mask=place[None] >= 70, pairs=pairs), has_bias=False)
    assert (ranges.keys == torch.tensor([70, 2 * SIZE])).all()
    first, end = ranges.queries[0, 0].unbind(-1)
    assert ((first < end) == (place >= 70) & (place < 2 * SIZE)).all()


def test_the_lowest_number_hides_where_nothing_else_does() -> None:
    """As for visible blocks: beside a bias it may be all that a row has."""
    pairs = torch.zeros(1, 1, SIZE, 2 * SIZE)
    pairs[..., SIZE:] = torch.finfo(torch.float32).min
    mask = mask_of(SIZE, 2 * SIZE, pairs=pairs)
    assert ranges_of(mask, has_bias=False).keys[0, 0, 0].tolist() == [0, SIZE]
    assert ranges_of(mask, has_bias=True).keys[0, 0, 0].tolist() == [0, 2 * SIZE]


@pytest.mark.parametrize("kind", ["key_mask", "segments", "boolean", "float", "together"])
def test_nothing_is_read_on_the_host(kind: str) -> None:
    """A tensor on the device "meta" has no numbers: to read one, or to take it elsewhere, is an error."""
    with torch.device("meta"):
        ids, kept = torch.empty(2, 200, dtype=torch.int64), torch.empty(2, 200, dtype=torch.bool)
        pairs = torch.empty(1, 3, 200, 200)
    masks = {
        "key_mask": {"key_mask": kept}, "segments": {"segments": (ids, ids)},
        "boolean": {"pairs": pairs.bool()}, "float": {"pairs": pairs},
        "together": {"key_mask": kept, "segments": (ids, ids), "pairs": pairs},
    }  # fmt: skip
    ranges = ranges_of(mask_of(200, 200, **masks[kind]), has_bias=False)
    heads = 3 if "pairs" in masks[kind] else 1
    assert all(each.shape[1:] == (heads, 200, 2) and each.is_meta for each in ranges)
    with pytest.raises((RuntimeError, NotImplementedError)):
        ranges.keys[0, 0, 0, 0].item()
