"""query_position and key_position: kinds, sizes, and positions past the rows of a table."""

import numpy as np
import pytest
import torch

from relattn import (
    AlibiBias,
    OffsetTable,
    RelativeEmbedding,
    RotaryEmbedding,
    ScoreTerms,
    ShapeError,
    TransformerXLEmbedding,
    relative_attention,
)
from tests.bad_input.refusal import call, ones, refused

POSITIONS = {"query_position": 5, "key_position": 6}
KINDS = "expected an int, or an integer tensor with a start or with every position"


@pytest.mark.parametrize("name", POSITIONS)
@pytest.mark.parametrize(
    "came",
    [None, 1.5, "0", True, np.bool_(True), np.float64(3), [0, 1], (0,), range(5), np.arange(5), np.array(3)],
    ids=repr,
)
def test_no_position(name, came):
    with refused(TypeError, f"{name}: got {came!r}; {KINDS}"):
        call(**{name: came})


@pytest.mark.parametrize("name", POSITIONS)
@pytest.mark.parametrize(
    ("came", "shown"),
    [
        (10**30, "an int of 100 bits"),
        (-(10**30), "an int of 100 bits"),
        (2**60, str(2**60)),
        (np.int64(-(2**62)), str(-(2**62))),
    ],
)
def test_beyond_int64(name, came, shown):
    with refused(ValueError, f"{name}: got {shown}; expected an int between -2**60 and 2**60"):
        call(**{name: came}, is_causal=True)


@pytest.mark.parametrize("name", POSITIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.complex64], ids=str)
@pytest.mark.parametrize("size", [(), (5,)], ids=["start", "every"])
def test_no_integers(name, dtype, size):
    with refused(TypeError, f"{name}: got dtype {dtype}; expected integer positions; convert with .long()"):
        call(**{name: ones(*size, dtype=dtype)})


@pytest.mark.parametrize(("name", "length"), POSITIONS.items())
@pytest.mark.parametrize("size", [(0,), (1,), (4,), (2, 4), (1, 5), (3, 5), (2, 1, 5), (2, 4, 5, 6)], ids=str)
def test_sizes(name, length, size):
    said = f"{name}: got shape {list(size)}; expected a start, [{length}] or [2, {length}]"
    with refused(ShapeError, said):
        call(**{name: ones(*size, dtype=torch.long)})


@pytest.mark.parametrize(("name", "length"), POSITIONS.items())
@pytest.mark.parametrize("start", [True, False], ids=["start", "every"])
def test_another_device(name, length, start):
    position = ones(*(() if start else (length,)), dtype=torch.long, device="meta")
    with refused(ValueError, f"{name}: got device meta; expected cpu, the query's; move it with .to()"):
        call(**{name: position}, is_causal=True)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32], ids=str)
@pytest.mark.parametrize("encoding", [AlibiBias(4), RelativeEmbedding(8, 300), RotaryEmbedding(8), None], ids=str)
def test_narrow_integers_are_counted_in_int64(dtype, encoding):
    """A start of 8 bits less another wraps around in its own dtype."""
    q, k, v = torch.randn(2, 4, 5, 8), torch.randn(2, 4, 6, 8), torch.randn(2, 4, 6, 8)
    low, high = (0, 120) if dtype == torch.uint8 else (-100, 100)

    def run(**positions):
        return relative_attention(q, k, v, encoding=encoding, window=(250, 2), **positions)

    for query_start, key_start in ((low, low), (high, low), (high, high), (high - 3, high)):
        expected = run(query_position=query_start, key_position=key_start)
        starts = [torch.tensor(start, dtype=dtype) for start in (query_start, key_start)]
        assert torch.allclose(run(query_position=starts[0], key_position=starts[1]), expected, atol=1e-5)
        every = [torch.arange(n).add(start).to(dtype) for n, start in ((5, query_start), (6, key_start))]
        assert torch.allclose(run(query_position=every[0], key_position=every[1]), expected, atol=1e-5)


LONGER = "make it with a larger max_length than {}, or with beyond='clamp' or 'zero'"
FUTURE = "attend with is_causal=True (it has no rows for keys in the future), or make it with causal=False"
TABLES = {
    "too many keys ahead": (RelativeEmbedding(8, 5), {}, "-4..5", "-4..4", LONGER.format(5)),
    "a start too far back": (RelativeEmbedding(8, 9), {"query_position": 5}, "-9..0", "-8..8", LONGER.format(9)),
    "a start too far ahead": (RelativeEmbedding(8, 9), {"key_position": 7}, "3..12", "-8..8", LONGER.format(9)),
    "window, too wide": (RelativeEmbedding(8, 3), {"window": (2, 4)}, "-2..4", "-2..2", LONGER.format(3)),
    "every position": (
        RelativeEmbedding(8, 9), {"query_position": torch.arange(5) + 20}, "-24..-15", "-8..8", LONGER.format(9),
    ),
    "positions by batch": (
        RelativeEmbedding(8, 9), {"key_position": torch.arange(12).reshape(2, 6)}, "-4..11", "-8..8", LONGER.format(9),
    ),
    "causal rows, keys ahead": (RelativeEmbedding(8, 9, causal=True), {}, "-4..5", "-8..0", FUTURE),
    "causal rows, too long": (
        RelativeEmbedding(8, 4, causal=True), {"is_causal": True, "key_position": -1}, "-5..0", "-3..0",
        LONGER.format(4),
    ),
    "causal rows, one query": (
        RelativeEmbedding(8, 4, causal=True), {"query": ones(2, 4, 1, 8), "query_position": 5}, "-5..0", "-3..0",
        LONGER.format(4),
    ),
}  # fmt: skip


ROWS = "expected rows for every visible offset"


@pytest.mark.parametrize("case", TABLES)
def test_past_a_table(case):
    encoding, changes, visible, rows, way_out = TABLES[case]
    said = f"RelativeEmbedding max_length: got visible offsets {visible} and rows for {rows}; {ROWS}; {way_out}"
    with refused(ValueError, said):
        call(encoding=encoding, **changes)


def test_past_a_learned_table_of_distances():
    said = (
        f"TransformerXLEmbedding max_length: got visible offsets -4..5 and rows for -2..2; {ROWS}; make it with a "
        "larger max_length than 3, or without, for sinusoids"
    )
    with refused(ValueError, said):
        call(encoding=TransformerXLEmbedding(4, 8, max_length=3))


@pytest.mark.parametrize(
    ("encoding", "said"),
    [
        (
            RelativeEmbedding(8, 9),
            "RelativeEmbedding max_length: offsets beyond its rows are visible; make it with a larger max_length "
            "than 9, or with beyond='clamp' or 'zero'",
        ),
        (
            TransformerXLEmbedding(4, 8, max_length=9),
            "TransformerXLEmbedding max_length: offsets beyond its rows are visible; make it with a larger "
            "max_length than 9, or without, for sinusoids",
        ),
        (
            ScoreTerms(relative_values=OffsetTable(ones(1, 17, 8), -8)),
            "relative_values: offsets beyond its rows are visible; use beyond='clamp' or 'zero', or give more rows",
        ),
    ],
)
@pytest.mark.parametrize("name", POSITIONS)
def test_start_given_as_a_tensor_past_a_table(encoding, said, name):
    """The device finds it, without the start being read: a RuntimeError."""
    with refused(RuntimeError, said):
        call(encoding=encoding, **{name: torch.tensor(20)})


def test_causal_rows_past_which_causality_already_hides():
    """It is not named as the way out where it is on: what is missing are rows of the past."""
    said = f"RelativeEmbedding max_length: offsets beyond its rows are visible; {LONGER.format(2)}"
    with refused(RuntimeError, said):
        call(encoding=RelativeEmbedding(8, 2, causal=True), is_causal=True, query_position=torch.tensor(3))


@pytest.mark.parametrize("term", ["relative_keys", "relative_queries", "relative_values", "bias"])
def test_past_the_rows_of_a_term(term):
    table = OffsetTable(ones(1, 3) if term == "bias" else ones(1, 3, 8), -1)
    way_out = "use beyond='clamp' or 'zero', or give more rows"
    with refused(ValueError, f"{term}: got visible offsets -4..5 and rows for -1..1; {ROWS}; {way_out}"):
        call(encoding=ScoreTerms(**{term: table}))


def test_every_position_of_an_empty_batch():
    """Nothing is visible in a batch of none, so nothing lies past the table."""
    q, k = ones(0, 4, 5, 8), ones(0, 4, 6, 8)
    output = relative_attention(q, k, k, encoding=RelativeEmbedding(8, 2), query_position=ones(0, 5, dtype=torch.long))
    assert output.shape == (0, 4, 5, 8)
