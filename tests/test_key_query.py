"""KeyQueryEmbedding: which row an offset reads, what it is beside RelativeEmbedding, its arguments."""

import pytest
import torch

from relattn import KeyQueryEmbedding, RelativeEmbedding, ScoreTerms, relative_attention
from relattn.positions.contiguous import ContiguousPositions
from relattn.positions.positions import Positions
from tests.bad_input.refusal import refused

HEAD_DIM, LENGTH = 4, 3


def test_it_is_relative_embedding_and_the_same_rows_for_the_key() -> None:
    """Bit-equal to the terms put together by hand."""
    encoding = KeyQueryEmbedding(HEAD_DIM, LENGTH)
    alone = RelativeEmbedding(HEAD_DIM, LENGTH)
    alone.load_state_dict({"relative_keys": encoding.relative_embeddings.detach()})
    q, k, v = torch.randn(3, 1, 2, LENGTH, HEAD_DIM)
    of_the_query = alone.terms(
        q, k, Positions(ContiguousPositions(0), ContiguousPositions(0), LENGTH, LENGTH, q.device)
    )
    both = of_the_query + ScoreTerms(relative_queries=of_the_query.relative_keys)
    ours = relative_attention(q, k, v, encoding=encoding)
    assert torch.equal(ours, relative_attention(q, k, v, encoding=both))
    assert not torch.allclose(ours, relative_attention(q, k, v, encoding=alone), atol=1e-3)


def test_row_0_is_the_most_distant_past() -> None:
    encoding = KeyQueryEmbedding(1, LENGTH)
    encoding.load_state_dict({"relative_embeddings": torch.arange(2.0 * LENGTH - 1).reshape(1, -1, 1)})
    q = torch.ones(1, 1, LENGTH, 1)
    terms = encoding.terms(q, q, Positions(ContiguousPositions(0), ContiguousPositions(0), LENGTH, LENGTH, q.device))
    for table in (terms.relative_keys, terms.relative_queries):
        assert table is not None
        assert table.rows(-2, 5)[0, :, 0].tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_an_offset_without_a_row_is_refused() -> None:
    q = torch.ones(1, 1, LENGTH + 1, HEAD_DIM)
    with refused(
        ValueError,
        "KeyQueryEmbedding max_length: got visible offsets -3..3 and rows for -2..2; expected rows for every visible "
        "offset; make it with a larger max_length than 3",
    ):
        relative_attention(q, q, q, encoding=KeyQueryEmbedding(HEAD_DIM, LENGTH))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"head_dim": 0}, "head_dim: got 0; expected an int of at least 1"),
        ({"max_length": 2.0}, "max_length: got 2.0; expected an int of at least 1"),
        ({"num_heads": 0}, "num_heads: got 0; expected an int of at least 1"),
    ],
)
def test_arguments(changes: dict, said: str) -> None:
    with refused(ValueError, said):
        KeyQueryEmbedding(**{"head_dim": HEAD_DIM, "max_length": LENGTH, **changes})
