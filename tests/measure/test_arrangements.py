"""The four published arrangements of Q @ RK^T: equal wherever each is defined, values and gradients; their errors."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from measure.peers.arrangements import diagonals, gather, pad_reshape, strided

ARRANGEMENTS: dict[str, Callable[[Tensor, Tensor, int], Tensor]] = {
    arrangement.__name__: arrangement for arrangement in (gather, pad_reshape, diagonals, strided)
}
EXACT = {"rtol": 1e-13, "atol": 1e-13}  # float64 dot products of at most 8 terms of size 1, in any order


def tensors(batch: int, heads: int, shared: bool, queries: int, rows: int, width: int) -> tuple[Tensor, Tensor]:
    """A relative query and relative keys, float64, fresh."""
    query = torch.randn(batch, heads, queries, width, dtype=torch.float64)
    keys = torch.randn(1 if shared else heads, rows, width, dtype=torch.float64)
    return query.requires_grad_(), keys.requires_grad_()


def by_definition(query: Tensor, keys: Tensor, key_length: int) -> Tensor:
    """S_rel[i, j] = q_i . RK[j - i + (Lq - 1)], pair by pair; NaN where the row does not exist."""
    batch, heads, queries, _ = query.shape
    result = query.new_full((batch, heads, queries, key_length), torch.nan)
    for head in range(heads):
        table = keys[0 if len(keys) == 1 else head]
        for i in range(queries):
            for j in range(key_length):
                row = j - i + (queries - 1)
                if row < len(table):
                    result[:, head, i, j] = query[:, head, i] @ table[row]
    return result


def results(name: str, query: Tensor, keys: Tensor, key_length: int, defined: Tensor) -> list[Tensor]:
    """S_rel where it is defined, and the gradients of a random sum of it."""
    arrange = ARRANGEMENTS.get(name, by_definition)
    scores = arrange(query, keys, key_length)
    assert scores.shape == (*query.shape[:3], key_length)
    assert torch.isfinite(scores[~defined]).all() or name == "definition", "what is undefined must still be finite"
    weights = torch.arange(scores.numel(), dtype=torch.float64).reshape(scores.shape).cos() * defined
    found = torch.autograd.grad((scores.masked_fill(~defined, 0.0) * weights).sum(), [query, keys])
    return [scores[defined], *found]


def assert_agree(names: list[str], query: Tensor, keys: Tensor, key_length: int) -> None:
    defined = ~torch.isnan(by_definition(query, keys, key_length))
    expected = results("definition", query, keys, key_length, defined)
    for name in names:
        for ours, theirs in zip(results(name, query, keys, key_length, defined), expected, strict=True):
            torch.testing.assert_close(ours, theirs, **EXACT, msg=lambda text, name=name: f"{name}: {text}")


SIZES = st.integers(1, 7)


@settings(max_examples=40)
@given(st.integers(1, 2), st.integers(1, 3), st.booleans(), SIZES, SIZES, SIZES, st.integers(0, 3))
def test_all_rows(batch: int, heads: int, shared: bool, queries: int, keys: int, width: int, more: int) -> None:
    """Lq + Lk - 1 rows (and more, which must not count): gather, diagonals and strided, any lengths."""
    rows = max(queries + keys - 1 + more, keys + 1)
    query, table = tensors(batch, heads, shared, queries, rows, width)
    assert_agree(["gather", "diagonals", "strided"], query, table, keys)


@settings(max_examples=40)
@given(st.integers(1, 2), st.integers(1, 3), st.booleans(), SIZES, SIZES)
def test_causal(batch: int, heads: int, shared: bool, length: int, width: int) -> None:
    """L rows for L queries and keys: gather and pad_reshape agree on and below the diagonal."""
    query, table = tensors(batch, heads, shared, length, length, width)
    assert_agree(["gather", "pad_reshape"], query, table, length)


@settings(max_examples=40)
@given(st.integers(1, 2), st.booleans(), SIZES, SIZES, st.data())
def test_fewer_rows(batch: int, shared: bool, queries: int, keys: int, data: st.DataObject) -> None:
    """Rows that end early, at the present say: gather and strided agree wherever a row exists."""
    least = keys + 1
    rows = data.draw(st.integers(least, max(queries + keys - 1, least)))
    query, table = tensors(batch, 2, shared, queries, rows, 3)
    assert_agree(["gather", "strided"], query, table, keys)


def test_all_four_where_all_are_defined() -> None:
    """One row of queries and keys more than causal: the lower triangle of all four, to the last bit of agreement."""
    length, width = 9, 4
    query, table = tensors(2, 2, False, length, 2 * length - 1, width)
    lower = torch.ones(length, length, dtype=torch.bool).tril()
    whole = [ARRANGEMENTS[name](query, table, length) for name in ("gather", "diagonals", "strided")]
    causal = pad_reshape(query, table[:, :length], length)
    for other in whole:
        torch.testing.assert_close(other[..., lower], causal[..., lower], **EXACT)


@pytest.mark.parametrize("name", ARRANGEMENTS)
def test_gradcheck(name: str) -> None:
    length = 3
    query, table = tensors(1, 2, False, length, length if name == "pad_reshape" else 2 * length - 1, 2)
    assert torch.autograd.gradcheck(lambda q, k: ARRANGEMENTS[name](q, k, length), (query, table))
    assert torch.autograd.gradgradcheck(lambda q, k: ARRANGEMENTS[name](q, k, length), (query, table))


def test_pad_reshape_wraps_above_the_diagonal() -> None:
    """What the paper's skew leaves there is another row's number, not zero: only the causal mask makes it harmless."""
    query, table = tensors(1, 1, True, 4, 4, 3)
    skewed = pad_reshape(query, table, 4)[0, 0]
    products = (query @ table.transpose(-1, -2))[0, 0]
    torch.testing.assert_close(skewed[0, 2:], products[1, :2], **EXACT)


@pytest.mark.parametrize(
    ("name", "rows", "keys", "text"),
    [
        (
            "pad_reshape",
            5,
            4,
            "pad_reshape: got 4 queries, 4 keys and 5 rows; it is defined for equal numbers (causal self-attention); "
            "use diagonals or strided",
        ),
        ("pad_reshape", 4, 5, "pad_reshape: got 4 queries, 5 keys and 4 rows"),
        ("diagonals", 7, 5, "diagonals: got 7 rows for 4 queries and 5 keys; expected at least 8"),
        ("strided", 5, 5, "strided_view: got 5 rows for 5 keys; expected at least 6"),
    ],
)
def test_errors(name: str, rows: int, keys: int, text: str) -> None:
    query, table = tensors(1, 1, True, 4, rows, 2)
    with pytest.raises(ValueError) as error:
        ARRANGEMENTS[name](query, table, keys)
    assert text in str(error.value)
