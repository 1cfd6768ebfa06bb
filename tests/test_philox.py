"""The random numbers of dropout: those of the paper, whichever part of the pairs is asked for."""

import numpy as np
import pytest
import torch

from relattn.equation.philox import kept_pairs, philox
from tests.oracle.philox import dropout_factors
from tests.oracle.philox import philox as by_the_paper

KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    (
        (0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF),
        (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    ),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]  # fmt: skip
"""The answers that the authors publish with their library, Random123, as kat_vectors."""


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN)
def test_the_words_are_those_that_the_authors_publish(counter, key, words) -> None:
    assert by_the_paper(counter, key) == words
    assert tuple(int(word) for word in philox(tuple(map(torch.tensor, counter)), key)) == words


@pytest.mark.parametrize(("queries", "keys"), [((0, 9), (0, 7)), ((3, 9), (2, 7)), ((5, 6), (6, 7)), ((4, 8), (0, 1))])
def test_a_part_of_the_pairs_has_the_numbers_of_the_whole(queries, keys, rng: np.random.Generator) -> None:
    seed, p = int(rng.integers(2**63)), 0.4
    whole = dropout_factors(seed, p, 2, 3, 9, 7) > 0
    heads = torch.arange(2, 5)  # the last of the first batch element, and two of the second
    part = kept_pairs(seed, 1.0 - p, heads, slice(*queries), slice(*keys), torch.float64)
    expected = whole.reshape(6, 9, 7)[2:5, slice(*queries), slice(*keys)]
    np.testing.assert_array_equal(part.numpy(), expected)
