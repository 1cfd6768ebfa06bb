"""RelativeEmbedding by itself: S, its diagonals, starts, explicit positions, and what holds beyond its rows."""

import numpy as np
import pytest
from keras import ops

from relattn.keras import ComputedTable, OffsetTable, RelativeEmbedding
from relattn.keras.table import CombinedTable
from tests import seeds
from tests.keras.gradients import numpy_of

HEAD_DIM, MAX_LENGTH = 6, 9
LENGTHS = [(9, 9), (4, 9), (9, 4), (1, 5), (5, 1), (3, 3)]


def stacked_diagonals(queries: np.ndarray, embedding: np.ndarray, t3: int) -> np.ndarray:
    """S [t1, t3] of one head: queries [t1, head_dim], embedding [head_dim, 2 t - 1], future first."""
    products = queries @ embedding
    t = (embedding.shape[1] + 1) // 2
    return np.stack([np.diagonal(products, t - 1 - j)[: len(queries)] for j in range(t3)]).T


@pytest.mark.parametrize(("t1", "t3"), LENGTHS)
def test_scores_are_stacked_diagonals(t1, t3):
    rng = seeds.generator(t1 * 10 + t3)
    queries = rng.normal(size=(2, 3, t1, HEAD_DIM)).astype("float32")
    layer = RelativeEmbedding(HEAD_DIM, MAX_LENGTH)
    scores = numpy_of(layer(queries, key_length=t3))
    future_first = numpy_of(layer.relative_keys)[0, ::-1].T  # rows here ascend from the past
    expected = [[stacked_diagonals(head, future_first, t3) for head in batch] for batch in queries]
    np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-5)
    wrong = [[stacked_diagonals(head, future_first[:, ::-1], t3) for head in batch] for batch in queries]
    assert t1 == t3 == 1 or np.abs(scores - wrong).max() > 0.1


def test_causal_rows_end_at_the_present():
    queries = seeds.generator(0).normal(size=(1, 1, 5, HEAD_DIM)).astype("float32")
    layer = RelativeEmbedding(HEAD_DIM, MAX_LENGTH, causal=True)
    scores = numpy_of(layer(queries))[0, 0]
    past = numpy_of(layer.relative_keys)[0]
    future_first = np.concatenate([past, np.zeros((MAX_LENGTH - 1, HEAD_DIM))])[::-1].T
    expected = stacked_diagonals(queries[0, 0], future_first, 5)
    np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-5)
    assert not np.triu(scores, 1).any() and scores[np.tril_indices(5)].all()


def test_a_cache_goes_on_where_the_sequence_stopped():
    queries = seeds.generator(1).normal(size=(2, 3, 7, HEAD_DIM)).astype("float32")
    layer = RelativeEmbedding(HEAD_DIM, MAX_LENGTH, num_heads=3)
    whole = numpy_of(layer(queries))
    for start in (3, ops.convert_to_tensor(3, "int32")):
        newest = numpy_of(layer(queries[:, :, 3:5], key_length=7, query_position=start))
        np.testing.assert_allclose(newest, whole[:, :, 3:5], rtol=1e-5, atol=1e-6)
    rolled = numpy_of(layer(queries[:, :, 3:5], key_length=4, query_position=3, key_position=2))
    np.testing.assert_allclose(rolled, whole[:, :, 3:5, 2:6], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("beyond", ["error", "clamp", "zero"])
@pytest.mark.parametrize("per_batch", [False, True])
def test_explicit_positions_look_every_pair_up(beyond, per_batch):
    rng = seeds.generator(2)
    queries = rng.normal(size=(2, 3, 4, HEAD_DIM)).astype("float32")
    query_position = rng.integers(0, 9, size=(2, 4) if per_batch else 4)
    key_position = rng.integers(0, 9, size=6)
    max_length = MAX_LENGTH if beyond == "error" else 3
    layer = RelativeEmbedding(HEAD_DIM, max_length, num_heads=3, beyond=beyond)
    place = {"query_position": query_position, "key_position": key_position}
    scores = numpy_of(layer(queries, key_length=6, **place))
    rows = numpy_of(layer.relative_keys)
    offsets = key_position - np.atleast_2d(query_position)[:, :, None]
    index = np.clip(offsets, 1 - max_length, max_length - 1) + max_length - 1
    expected = np.einsum("bhid,hbijd->bhij", queries, rows[:, np.broadcast_to(index, (2, 4, 6))])
    if beyond == "zero":
        expected = np.where((np.abs(offsets) < max_length)[:, None], expected, 0.0)
    assert beyond == "error" or (np.abs(offsets) >= max_length).any()
    np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-5)


def test_explicit_positions_that_follow_one_another_are_starts():
    queries = seeds.generator(3).normal(size=(2, 3, 5, HEAD_DIM)).astype("float32")
    layer = RelativeEmbedding(HEAD_DIM, MAX_LENGTH, causal=True)
    expected = numpy_of(layer(queries, query_position=3, key_position=2))
    for place in (np.arange(3, 8), np.arange(3, 8)[None].repeat(2, 0)):
        actual = numpy_of(layer(queries, query_position=place, key_position=2))
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


def test_a_sum_of_tables_ends_where_one_of_them_does():
    wide, narrow = OffsetTable(ops.zeros((1, 9)), -4), OffsetTable(ops.zeros((1, 5)), -3)
    free, endless = OffsetTable(ops.zeros((1, 3)), -6, "zero"), ComputedTable(lambda offsets: offsets[None])
    for a, b, defined, extent in (
        (wide, narrow, (-3, 1), (-4, 4)),
        (narrow, wide, (-3, 1), (-4, 4)),
        (free, narrow, (-3, 1), (-7, 1)),
        (narrow, endless, (-3, 1), None),
        (free, free, None, (-7, -3)),
    ):
        table = CombinedTable(a, b)
        assert (table.defined, table.extent) == (defined, extent)
