"""The two layers that the generalised algorithm was published with, from their formulas, number for number.

RelativePositionalEmbedding (head_size, sequence_length):
    E has a column for every distance, from the most distant future to the most distant past, 2 t - 1 of them for
    t = sequence_length. Q E then holds, on its diagonals, the columns of S: key j stands on diagonal (t - 1) - j. S is
    the stack of those diagonals, transposed, for the keys there are (t3 of them; more than queries, t1 < t3, or fewer).

Attention:
    softmax((Q K^T + S) / sqrt(head_size)) V
"""

import keras
import numpy as np
import pytest
from keras import ops

from relattn.keras import RelativeMultiHeadAttention, RelativePositionalEmbedding
from tests import seeds
from tests.keras.gradients import numpy_of

HEAD_SIZE, SEQUENCE_LENGTH = 6, 9
LENGTHS = [(9, 9), (4, 9), (9, 4), (1, 5), (5, 1), (3, 3)]


def stacked_diagonals(queries: np.ndarray, embedding: np.ndarray, t3: int) -> np.ndarray:
    """S [t1, t3] of one head: queries [t1, head_size], embedding [head_size, 2 t - 1], future first."""
    products = queries @ embedding
    t = (embedding.shape[1] + 1) // 2
    return np.stack([np.diagonal(products, t - 1 - j)[: len(queries)] for j in range(t3)]).T


def softmax(scores: np.ndarray) -> np.ndarray:
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


@pytest.mark.parametrize(("t1", "t3"), LENGTHS)
def test_relative_positional_embedding(t1, t3):
    rng = seeds.generator(t1 * 10 + t3)
    queries = rng.normal(size=(2, 3, t1, HEAD_SIZE)).astype("float32")
    layer = RelativePositionalEmbedding(HEAD_SIZE, SEQUENCE_LENGTH)
    scores = numpy_of(layer(queries, key_length=t3))
    future_first = numpy_of(layer.relative_keys)[0, ::-1].T  # rows here ascend from the past
    expected = [[stacked_diagonals(head, future_first, t3) for head in batch] for batch in queries]
    np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-5)
    wrong = [[stacked_diagonals(head, future_first[:, ::-1], t3) for head in batch] for batch in queries]
    assert t1 == t3 == 1 or np.abs(scores - wrong).max() > 0.1


@pytest.mark.parametrize(("t1", "t3"), LENGTHS)
@pytest.mark.parametrize("query_block", [None, 2])
def test_attention(t1, t3, query_block):
    rng = seeds.generator(t1 * 10 + t3)
    heads = 2
    query = rng.normal(size=(1, t1, 8)).astype("float32")
    value = rng.normal(size=(1, t3, 8)).astype("float32")
    layer = RelativeMultiHeadAttention(
        heads,
        HEAD_SIZE,
        encoding=RelativePositionalEmbedding(HEAD_SIZE, SEQUENCE_LENGTH, num_heads=heads),
        query_block=query_block,
    )
    output = numpy_of(layer(query, value))

    def project(dense: keras.layers.Layer, x: np.ndarray) -> np.ndarray:
        return np.einsum("td,dhe->hte", x[0], numpy_of(dense.kernel)) + numpy_of(dense.bias)[:, None]

    q, k, v = (
        project(layer.query_dense, query), project(layer.key_dense, value), project(layer.value_dense, value),
    )  # fmt: skip
    table = numpy_of(layer.encoding.relative_keys)
    mixed = []
    for h in range(heads):
        scores = q[h] @ k[h].T + stacked_diagonals(q[h], table[h, ::-1].T, t3)
        mixed.append(softmax(scores / np.sqrt(HEAD_SIZE)) @ v[h])
    expected = np.einsum("hte,hed->td", mixed, numpy_of(layer.output_dense.kernel)) + numpy_of(layer.output_dense.bias)
    np.testing.assert_allclose(output[0], expected, rtol=1e-4, atol=1e-5)


def test_causal_rows_end_at_the_present():
    queries = seeds.generator(0).normal(size=(1, 1, 5, HEAD_SIZE)).astype("float32")
    layer = RelativePositionalEmbedding(HEAD_SIZE, SEQUENCE_LENGTH, causal=True)
    scores = numpy_of(layer(queries))[0, 0]
    past = numpy_of(layer.relative_keys)[0]
    future_first = np.concatenate([past, np.zeros((SEQUENCE_LENGTH - 1, HEAD_SIZE))])[::-1].T
    expected = stacked_diagonals(queries[0, 0], future_first, 5)
    np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-5)
    assert not np.triu(scores, 1).any() and scores[np.tril_indices(5)].all()


def test_a_cache_goes_on_where_the_sequence_stopped():
    queries = seeds.generator(1).normal(size=(2, 3, 7, HEAD_SIZE)).astype("float32")
    layer = RelativePositionalEmbedding(HEAD_SIZE, SEQUENCE_LENGTH, num_heads=3)
    whole = numpy_of(layer(queries))
    for start in (3, ops.convert_to_tensor(3, "int32")):
        newest = numpy_of(layer(queries[:, :, 3:5], key_length=7, query_position=start))
        np.testing.assert_allclose(newest, whole[:, :, 3:5], rtol=1e-5, atol=1e-6)
    rolled = numpy_of(layer(queries[:, :, 3:5], key_length=4, query_position=3, key_position=2))
    np.testing.assert_allclose(rolled, whole[:, :, 3:5, 2:6], rtol=1e-5, atol=1e-6)
