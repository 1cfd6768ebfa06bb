"""A strip and its diagonals: one is read without a copy, and the other is its transpose."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from relattn.backends.dense.skew import strided_strip, strided_view

SIZES = st.integers(1, 7)
EXACT = {"rtol": 1e-13, "atol": 1e-13}  # sums in float64 of at most 3 * 7 * 16 products of size 1, in any order


@settings(max_examples=40)
@given(st.integers(1, 3), SIZES, SIZES, st.integers(0, 3))
def test_strip_is_the_transpose_of_view(heads: int, queries: int, keys: int, more: int) -> None:
    """<strided_view(x), y> = <x, strided_strip(y)>, and view(strip(y)) = y, in every width that either takes."""
    width = max(queries + keys - 1, keys + (queries > 1)) + more
    x, y = torch.randn(heads, queries, width).double(), torch.randn(heads, queries, keys).double()
    strip = strided_strip(y, width)
    assert torch.equal(strided_view(strip, keys), y)
    torch.testing.assert_close((strided_view(x, keys) * y).sum(), (x * strip).sum(), **EXACT)


def test_strided_copies_nothing() -> None:
    strip = torch.randn(2, 5, 9)
    view = strided_view(strip, 4)
    assert view.untyped_storage().data_ptr() == strip.untyped_storage().data_ptr()
