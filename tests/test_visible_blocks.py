"""Visible blocks beside the pairs written out: what a block says holds for each of its pairs, and nothing is missed."""

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor

from relattn.equation.mask import Mask
from relattn.equation.visible_blocks import EVERYTHING, LOOK, NOTHING, SIZE, Blocks
from relattn.positions.contiguous import ContiguousPositions
from relattn.positions.positions import Positions

LENGTHS = (1, SIZE - 1, SIZE, SIZE + 1, 3 * SIZE, 3 * SIZE + 20)


def mask_of(queries: int, keys: int, **given: Tensor | tuple[Tensor, Tensor]) -> Mask:
    positions = Positions(ContiguousPositions(0), ContiguousPositions(0), queries, keys, torch.device("cpu"))
    return Mask(positions, **given)  # pyright: ignore[reportArgumentType]


def blocks_of(mask: Mask, *, has_bias: bool = False) -> Blocks:
    return Blocks.of(mask, has_bias=has_bias)


def told(attends: np.ndarray) -> np.ndarray:
    """[..., blocks of rows, blocks of columns]: what each block of [..., rows, columns] has to see."""
    rows, columns = ([slice(n, n + SIZE) for n in range(0, length, SIZE)] for length in attends.shape[-2:])
    found = [
        NOTHING if not block.any() else EVERYTHING if block.all() else LOOK
        for one in attends.reshape(-1, *attends.shape[-2:])
        for block in (one[row, column] for row, column in itertools.product(rows, columns))
    ]
    return np.array(found).reshape(*attends.shape[:-2], len(rows), len(columns))


@pytest.mark.parametrize("keys", LENGTHS)
def test_a_key_mask(keys: int, rng: np.random.Generator) -> None:
    mixed = rng.random(keys) < 0.5
    after, before = np.arange(keys) < keys // 2, np.arange(keys) >= SIZE
    last = np.arange(keys) == keys - 1
    kept = np.stack([mixed, after, before, last, ~last, np.ones(keys, bool), np.zeros(keys, bool)])
    blocks = blocks_of(mask_of(5, keys, key_mask=torch.from_numpy(kept)))
    assert blocks.key_ids is None and blocks.pairs is None and blocks.keys is not None
    np.testing.assert_array_equal(blocks.keys, told(kept[:, None, :].repeat(5, 1))[:, 0])


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("keys", LENGTHS)
def test_segments(keys: int, dtype: torch.dtype, rng: np.random.Generator) -> None:
    """By the smallest and the largest id, however they are ordered, and however large they are."""
    ids = np.stack([np.sort(rng.integers(0, 4, keys)), rng.integers(-(2**31), 2**31, keys), np.full(keys, 7)])
    given = torch.from_numpy(ids).to(dtype)
    blocks = blocks_of(mask_of(keys, keys, segments=(given, given)))
    assert blocks.keys is None and blocks.pairs is None and blocks.key_ids is not None
    expected = [[(row[n : n + SIZE].min(), row[n : n + SIZE].max()) for n in range(0, keys, SIZE)] for row in ids]
    np.testing.assert_array_equal(blocks.key_ids, expected)


@pytest.mark.parametrize("keys", LENGTHS)
@pytest.mark.parametrize("queries", LENGTHS)
def test_a_boolean_mask(queries: int, keys: int, rng: np.random.Generator) -> None:
    """Random blocks, with one visible pair, or one hidden pair, in any corner of a block."""
    shape = 2, 3, -(-queries // SIZE), -(-keys // SIZE)
    attends = np.kron(rng.random(shape) < 0.5, np.ones((SIZE, SIZE), bool))[..., :queries, :keys]
    for b, h, m, n in np.ndindex(*shape):
        row = min(m * SIZE + rng.choice([0, SIZE - 1]), queries - 1)
        column = min(n * SIZE + rng.choice([0, SIZE - 1]), keys - 1)
        attends[b, h, row, column] ^= rng.random() < 0.5
    for given in (attends, attends[:, :, :1], attends[:, :, :, :1]):
        blocks = blocks_of(mask_of(queries, keys, pairs=torch.from_numpy(given)))
        np.testing.assert_array_equal(blocks.pairs, told(given))


def test_a_float_mask_is_looked_at_but_where_it_forbids_a_whole_block() -> None:
    """It adds to the scores. A row of lowest numbers is uniform."""
    added = torch.zeros(1, 1, 2 * SIZE, 3 * SIZE)
    added[..., :SIZE, :SIZE] = -torch.inf
    added[..., SIZE:, :SIZE] = torch.finfo(torch.float32).min
    added[..., SIZE:, SIZE : 2 * SIZE] = -torch.inf
    added[..., -1, 2 * SIZE - 1] = torch.nan
    added[..., SIZE:, 2 * SIZE :] = -torch.inf
    blocks = blocks_of(mask_of(2 * SIZE, 3 * SIZE, pairs=added))
    assert blocks.pairs is not None
    assert blocks.pairs.tolist() == [[[[NOTHING, LOOK, LOOK], [LOOK, LOOK, NOTHING]]]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.float16], ids=str)
def test_the_lowest_number_beside_a_higher_one(dtype: torch.dtype) -> None:
    """In every row of a block, under no other mask; not in float16, whose scores reach as far."""
    added = torch.zeros(1, 1, 2 * SIZE, 2 * SIZE + 1, dtype=dtype)
    added[..., SIZE : 2 * SIZE] = torch.finfo(dtype).min
    given = {"pairs": added}
    hidden = LOOK if dtype == torch.float16 else NOTHING
    assert blocks_of(mask_of(2 * SIZE, 2 * SIZE + 1, **given)).pairs.tolist() == [[[[LOOK, hidden, LOOK]] * 2]]
    added[..., -1, :] = torch.finfo(dtype).min
    found = blocks_of(mask_of(2 * SIZE, 2 * SIZE + 1, **given)).pairs.tolist()
    assert found == [[[[LOOK, hidden, LOOK], [LOOK, LOOK, LOOK]]]]
    assert blocks_of(mask_of(2 * SIZE, 2 * SIZE + 1, **given), has_bias=True).pairs.eq(LOOK).all()
    kept = torch.ones(1, 2 * SIZE + 1, dtype=torch.bool)
    assert blocks_of(mask_of(2 * SIZE, 2 * SIZE + 1, **given, key_mask=kept)).pairs.eq(LOOK).all()


def test_a_mask_that_is_broadcast_is_read_once() -> None:
    attends = torch.rand(1, 1, SIZE, 2 * SIZE) < 0.5
    blocks = blocks_of(mask_of(SIZE, 2 * SIZE, pairs=attends.expand(5, 8, SIZE, 2 * SIZE)))
    assert blocks.pairs is not None and blocks.pairs.shape == (1, 1, 1, 2)
