"""OffsetTable and ScoreTerms: their construction, and their sums."""

import numpy as np
import pytest
import torch

from relattn import OffsetTable, ScoreTerms, ShapeError, UnsupportedError
from tests.bad_input.refusal import ones, refused

NAN = float("nan")
QUERY = ones(2, 4, 5, 8)
TERMS = ("relative_keys", "relative_queries", "relative_values", "bias")


def table(*size: int, first: int = -10, dtype: torch.dtype = torch.float32, device: str = "cpu", beyond="error"):
    return OffsetTable(ones(*size, dtype=dtype, device=device), first, beyond)


@pytest.mark.parametrize(
    ("came", "name"),
    [
        (None, "NoneType"), ([[1.0]], "list"), (np.zeros((1, 5, 8)), "ndarray"),
        *((ones(*size), list(size)) for size in ((), (5,), (1, 1, 5, 8))),
    ],
)  # fmt: skip
def test_table_values(came, name):
    expected = "a tensor [heads or 1, rows, width] (or [heads or 1, rows] for a bias)"
    with refused(TypeError, f"OffsetTable values: got {name}; expected {expected}"):
        OffsetTable(came, 0)


@pytest.mark.parametrize("size", [(1, 0, 8), (4, 0)])
def test_table_without_rows(size):
    with refused(ValueError, f"OffsetTable values: got shape {list(size)}; expected at least one row"):
        OffsetTable(ones(*size), 0)


@pytest.mark.parametrize("beyond", ["error", "clamp", "zero"])
@pytest.mark.parametrize("came", [None, 1.5, "0", True, NAN, [0], (0,)], ids=repr)
def test_table_first(came, beyond):
    with refused(TypeError, f"OffsetTable first: got {came!r}; expected an int, or a 0-d int64 tensor"):
        OffsetTable(ones(1, 5, 8), came, beyond)


@pytest.mark.parametrize(
    ("came", "name"),
    [
        (torch.tensor(0.0), "torch.float32 []"), (torch.tensor(True), "torch.bool []"),
        (torch.tensor(0, dtype=torch.int32), "torch.int32 []"), (torch.tensor([0]), "torch.int64 [1]"),
    ],
)  # fmt: skip
def test_table_first_as_a_tensor(came, name):
    with refused(TypeError, f"OffsetTable first: got {name}; expected an int, or a 0-d int64 tensor"):
        OffsetTable(ones(1, 5, 8), came, "error")


@pytest.mark.parametrize("beyond", ["clamp", "zero"])
def test_table_first_as_a_tensor_without_refusing(beyond):
    said = f"OffsetTable first: got a tensor with beyond='{beyond}'; expected an int for a table that clamps or zeroes"
    with refused(ValueError, said):
        OffsetTable(ones(1, 5, 8), torch.tensor(0), beyond)


@pytest.mark.parametrize("came", ["drop", "Clamp", None, 1, ["clamp"], {}], ids=repr)
def test_table_beyond(came):
    with refused(ValueError, f"OffsetTable beyond: got {came!r}; expected one of 'clamp', 'zero', 'error'"):
        OffsetTable(ones(1, 5, 8), 0, came)


@pytest.mark.parametrize("name", TERMS)
@pytest.mark.parametrize("came", [1, "x", [1], ones(1, 5, 8)], ids=["int", "str", "list", "Tensor"])
def test_term_no_table(name, came):
    with refused(TypeError, f"ScoreTerms {name}: got {type(came).__name__}; expected an OffsetTable or None"):
        ScoreTerms(**{name: came})


@pytest.mark.parametrize("name", TERMS)
def test_term_of_the_wrong_rank(name):
    size, expected = ((1, 5, 8), "[heads or 1, rows]") if name == "bias" else ((1, 5), "[heads or 1, rows, width]")
    with refused(ValueError, f"ScoreTerms {name}: got values of shape {size}; expected {expected}"):
        ScoreTerms(**{name: table(*size)})


@pytest.mark.parametrize("name", ["query", "key", "relative_query"])
@pytest.mark.parametrize("came", [1, "x", [1.0], table(1, 5, 8)], ids=["int", "str", "list", "OffsetTable"])
def test_term_no_tensor(name, came):
    with refused(TypeError, f"ScoreTerms {name}: got {type(came).__name__}; expected a tensor or None"):
        ScoreTerms(**{name: came}, relative_keys=table(1, 21, 8))


def test_relative_query_alone():
    said = "ScoreTerms relative_query: came without relative_keys to multiply it with; give both or neither"
    with refused(ValueError, said):
        ScoreTerms(relative_query=QUERY)


@pytest.mark.parametrize("name", ["query", "key"])
def test_two_rewritings(name):
    said = f"sum of encodings: both operands rewrite the {name}; no paper defines that, keep one of them"
    with refused(UnsupportedError, said) as caught:
        ScoreTerms(**{name: QUERY}) + ScoreTerms(**{name: QUERY})
    assert caught.value.reasons == {}


def keys(size: tuple[int, ...], query: torch.Tensor | None = QUERY, **kind) -> ScoreTerms:
    return ScoreTerms(relative_query=query, relative_keys=table(*size, **kind))


HEADS = "sum of tables: got 3 heads ({0}) and 4 heads ({1}); expected the same number, or 1 shared by all"
WIDTHS = "sum of tables: got widths 7 and 8 ([1, 21, 7], [1, 21, 8]); expected one width"


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [
        (ScoreTerms(bias=table(3, 21)), ScoreTerms(bias=table(4, 21)), HEADS.format([3, 21], [4, 21])),
        (keys((3, 21, 8)), keys((4, 21, 8)), HEADS.format([3, 21, 8], [4, 21, 8])),
        (keys((3, 21, 8)), keys((4, 21, 8), QUERY + 1), HEADS.format([3, 21, 8], [4, 21, 8])),
        (keys((1, 21, 7), None), keys((1, 21, 8), None), WIDTHS),
        (
            ScoreTerms(relative_values=table(1, 21, 7)),
            ScoreTerms(relative_values=table(1, 21, 8)),
            WIDTHS,
        ),
        (
            keys((1, 21, 8)),
            keys((1, 21, 8), ones(3, 4, 5, 8)),
            "ScoreTerms sum: got relative queries [2, 4, 5, 8] and [3, 4, 5, 8]; expected the same batch, heads and "
            "length",
        ),
    ],
)
def test_sums_of_other_sizes(a, b, said):
    with refused(ShapeError, said):
        a + b


@pytest.mark.parametrize("name", TERMS)
def test_sums_on_two_devices(name):
    size = (1, 21) if name == "bias" else (1, 21, 8)
    said = "sum of tables: got devices cpu and meta; expected one device; move one encoding with .to()"
    with refused(ValueError, said):
        ScoreTerms(**{name: table(*size)}) + ScoreTerms(**{name: table(*size, device="meta")})


@pytest.mark.parametrize("name", TERMS)
@pytest.mark.parametrize(("a", "b"), [(torch.float64, torch.float32), (torch.bfloat16, torch.float64)], ids=str)
def test_sums_of_two_dtypes(name, a, b):
    size = (1, 21) if name == "bias" else (1, 21, 8)
    way_out = "convert one encoding with .to()"
    said = f"sum of tables: got dtypes {a} and {b}; expected float64 in both or in neither; {way_out}"
    with refused(TypeError, said):
        ScoreTerms(**{name: table(*size, dtype=a)}) + ScoreTerms(**{name: table(*size, dtype=b)})


@pytest.mark.parametrize("first", [None, QUERY], ids=["None first", "None last"])
def test_sum_of_the_own_query_and_another(first):
    said = (
        "ScoreTerms sum: got one relative_query that is None (the caller's own query) and one that is a tensor; "
        "expected both of a kind; give the query itself in place of None"
    )
    with refused(ValueError, said):
        keys((1, 21, 8), first) + keys((1, 21, 8), QUERY if first is None else None)


def test_sum_of_terms_that_answer_for_prefix_tokens_and_others():
    """Nobody could tell which pairs of a prefix token get nothing. Terms without a table have no such pairs."""
    one, other = (ScoreTerms(bias=table(1, 21), has_prefix_rows=answers) for answers in (True, False))
    said = (
        "ScoreTerms sum: got terms with has_prefix_rows=True and others without on the same axes; expected rows "
        "for the tokens before a grid in all of them, or in none"
    )
    with refused(ValueError, said):
        one.on("y", "x") + other.on("y", "x")
    for sum_of in (one + one, one + ScoreTerms(), ScoreTerms() + one):
        assert sum_of.has_prefix_rows
    assert not (other + other).has_prefix_rows


def test_sum_of_tables_that_share_no_offset():
    said = (
        "sum of tables: got rows that start and end at [(0, 3), (10, 13)], and tables that refuse offsets beyond them; "
        "expected an offset that both have; else nothing can be visible"
    )
    with refused(ValueError, said):
        ScoreTerms(bias=table(1, 3, first=0)) + ScoreTerms(bias=table(1, 3, first=10))


@pytest.mark.parametrize("other", [1, None, "x", ones(1)], ids=["int", "None", "str", "Tensor"])
def test_sum_with_something_else(other):
    with refused(TypeError, f"unsupported operand type(s) for +: 'ScoreTerms' and {type(other).__name__!r}"):
        ScoreTerms() + other
