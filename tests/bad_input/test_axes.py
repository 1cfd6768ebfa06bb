"""Positions on several axes: sides that differ, grids that do not fit, encodings on axes that nobody gave."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from relattn import (
    FunctionBias,
    GridBias,
    GridEmbedding,
    GridPositions,
    LogGridBias,
    OffsetTable,
    RelativeEmbedding,
    RotaryEmbedding,
    ScoreTerms,
    ShapeError,
    T5Bias,
    TransformerXLEmbedding,
    UnsupportedError,
    explain,
    flex_score_mod,
    grid,
)
from tests.bad_input.refusal import D, H, call, ones, refused

GRID = grid(2, 3)
SQUARE = {"query": ones(2, H, 6, D), "query_position": GRID, "key_position": GRID}
"""Six queries and six keys on a grid of 2 x 3."""


# --- sides that differ, and what stands on an axis

ONE_SIDED = "got no axis {0!r}, which the other side has; expected both sides on the same axes; give it to both, or to "


@pytest.mark.parametrize(
    ("query", "key", "blamed", "axis"),
    [
        (GRID, 0, "key_position", "y"),
        (0, GRID, "query_position", "y"),
        (GRID, {"y": 0, "sequence": 1}, "key_position", "x"),
        ({"sequence": 0}, {"pitch": 0}, "query_position", "pitch"),
    ],
    ids=["query", "key", "one of two", "another"],
)
def test_an_axis_that_one_side_has(query, key, blamed, axis):
    with refused(ValueError, f"{blamed}: {ONE_SIDED.format(axis)}neither"):
        call(**SQUARE | {"query_position": query, "key_position": key})


KINDS = "expected an int, or an integer tensor with a start or with every position"


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        ({3: 0}, TypeError, "query_position: got 3 for an axis; expected its name, such as 'x'"),
        ({"": 0}, TypeError, "query_position: got '' for an axis; expected its name, such as 'x'"),
        ({"x": 1.5}, TypeError, f"query_position['x']: got 1.5; {KINDS}"),
        ({"x": None}, TypeError, f"query_position['x']: got None; {KINDS}"),
        ({"sequence": 1.5}, TypeError, f"query_position: got 1.5; {KINDS}"),
        ({"x": 2**60}, ValueError, f"query_position['x']: got {2**60}; expected an int between -2**60 and 2**60"),
        ({"x": ones(5).long()}, ShapeError, "query_position['x']: got shape [5]; expected a start, [6] or [2, 6]"),
        (
            {"x": ones(6)},
            TypeError,
            "query_position['x']: got dtype torch.float32; expected integer positions; convert with .long()",
        ),
    ],
    ids=["no name", "an empty name", "a float", "None", "the sequence", "too far", "a length", "a dtype"],
)
def test_positions_on_an_axis(given, error, said):
    with refused(error, said):
        call(**SQUARE | {"query_position": given, "key_position": dict.fromkeys(given, 0)})


@pytest.mark.parametrize("side", ["query_position", "key_position"])
@pytest.mark.parametrize(("sizes", "prefix_tokens", "count"), [((2, 2), 0, 4), ((3, 3), 0, 9), ((2, 3), 1, 7)])
def test_a_grid_of_another_length(side, sizes, prefix_tokens, count):
    said = (
        f"{side}['y']: got a grid of {count} tokens beside 6; expected as many tokens as the grid has, those that lead "
        "among them; say relattn.grid(..., first=, length=) for a part"
    )
    with refused(ShapeError, said):
        call(**SQUARE | {side: grid(*sizes, prefix_tokens=prefix_tokens)})


def test_digits_of_another_length_on_the_sequence():
    said = "query_position: got a grid of 5 tokens beside 6; expected as many tokens as the grid has, ..."
    with refused(ShapeError, said):
        call(**SQUARE | {"query_position": grid(5)["x"], "key_position": 0})


def test_prefix_tokens_of_the_sequence():
    with refused(
        ValueError,
        "query_position: got grid positions with prefix_tokens=1 for the sequence, where every token has a place; "
        "expected none, or these positions on an axis of their own",
    ):
        call(**SQUARE | {"query_position": grid(5, prefix_tokens=1)["x"], "key_position": 0})


NOBODY = "{0}: stands on the axis {1!r}, and query_position and key_position give {2}; expected both to give it: "


@pytest.mark.parametrize("function", [call, lambda **k: call(explain, **k)], ids=["attention", "explain"])
@pytest.mark.parametrize(
    ("encoding", "positions", "named"),
    [
        (GridBias((2, 3), H), 0, ("GridBias", "y", "'sequence'")),
        (GridBias((2, 3), H), {"y": 0}, ("GridBias", "x", "'sequence', 'y'")),
        (RelativeEmbedding(D, 9).on("z"), GRID, ("RelativeEmbedding", "z", "'sequence', 'y', 'x'")),
        (T5Bias(H) + T5Bias(H).on("z"), GRID, ("T5Bias", "z", "'sequence', 'y', 'x'")),
        (ScoreTerms(bias=OffsetTable(ones(1, 9), -4)).on("z"), 0, ("encoding", "z", "'sequence'")),
    ],
    ids=["grid", "one of two", "on", "a sum", "terms"],
)
def test_an_axis_that_nobody_gave(function, encoding, positions, named):
    said = NOBODY.format(*named) + f"query_position={{{named[1]!r}: ...}}, key_position={{...}}, or relattn.grid for "
    with refused(ValueError, said + "both"):
        function(**SQUARE | {"query_position": positions, "key_position": positions}, encoding=encoding)


def test_a_rotation_on_an_axis_that_nobody_gave():
    with refused(ValueError, "key_position: got no axis 'x'; expected where the keys stand on it"):
        call(encoding=RotaryEmbedding(D).on("x"))


# --- tables that are too small on one axis

ROWS = "got visible offsets -2..2 on the axis 'x' and rows for {0}; expected rows for every visible offset; "


@pytest.mark.parametrize(
    ("encoding", "said"),
    [
        (
            GridBias((2, 2), H),
            "GridBias sizes: got (2, 2) and visible offsets -2..2 on the axis 'x'; expected a size of at least 3 "
            "there; make it for the whole grid, or take .resized(sizes)",
        ),
        (
            GridEmbedding(D, (1, 3)),
            "GridEmbedding sizes: got (1, 3) and visible offsets -1..1 on the axis 'y'; expected a size of at least 2 "
            "there; make it for the whole grid, or take .resized(sizes)",
        ),
        (
            RelativeEmbedding(D, 2).on("x"),
            "RelativeEmbedding max_length: " + ROWS.format("-1..1") + "make it with a larger max_length than 2, or "
            "with beyond='clamp' or 'zero'",
        ),
        (
            TransformerXLEmbedding(H, D, max_length=2).on("x"),
            "TransformerXLEmbedding max_length: " + ROWS.format("-1..1") + "make it with a larger max_length than 2, "
            "or without, for sinusoids",
        ),
        (
            ScoreTerms(bias=OffsetTable(ones(H, 2), 0)).on("x"),
            "bias: " + ROWS.format("0..1") + "use beyond='clamp' or 'zero', or give more rows",
        ),
        (
            ScoreTerms(bias=OffsetTable(ones(H, 2), 0)).on("y", "x"),
            "bias: got visible offsets -7..7 on the axis 'y, x' and rows for 0..1; expected rows for every visible "
            "offset; use beyond='clamp' or 'zero', or give more rows",
        ),
    ],
    ids=["bias", "embedding", "on", "learned", "terms", "joint terms"],
)
def test_too_small_on_one_axis(encoding, said):
    with refused(ValueError, said):
        call(**SQUARE, encoding=encoding)


@pytest.mark.parametrize(("max_length", "more"), [(9, ""), (2, " and a larger max_length than 2")])
@pytest.mark.parametrize("x", [SQUARE["query_position"]["x"], torch.arange(6) % 3], ids=["grid", "explicit"])
def test_rows_for_the_past_alone_on_another_axis(x, max_length, more):
    """Causality hides no pair by its offset there, so it is no way out."""
    at = SQUARE["query_position"] | {"x": x}
    way_out = (
        f"make it with causal=False{more}, or with beyond='clamp' or 'zero' (it has no rows for keys in the future, "
        "and is_causal hides keys by their positions on the sequence alone)"
    )
    said = (
        "RelativeEmbedding max_length: got visible offsets -2..2 on the axis 'x' and rows for "
        f"{1 - max_length}..0; expected rows for every visible offset; {way_out}"
    )
    with refused(ValueError, said):
        call(
            **SQUARE | {"query_position": at, "key_position": at}, is_causal=True,
            encoding=RelativeEmbedding(D, max_length, causal=True).on("x"),
        )  # fmt: skip


@pytest.mark.parametrize("names", [("y", "x"), ("y",)], ids=str)
def test_positions_so_far_apart_that_no_rows_are_made(names):
    far = {"y": torch.tensor([0, 1, 2, 3, 4, 10**8]), "x": 0}
    encoding = LogGridBias((9,) * len(names), H, axes=names)
    said = "query_position, key_position: offsets -100000000..5 are visible on the axis 'y', more than the 16777216 "
    with refused(ValueError, said + "that an encoding makes rows for; number the positions with smaller gaps"):
        call(**SQUARE | {"query_position": far, "key_position": {"y": 0, "x": 0}}, encoding=encoding)


def test_prefix_tokens_on_one_of_two_axes():
    where = {"y": grid(2, 2, prefix_tokens=2)["y"], "x": torch.arange(6)}
    with refused(
        ValueError,
        "query_position, key_position: got prefix tokens on some of the axes y, x and not on others; expected one "
        "relattn.grid for all of them, or explicit positions on all of them",
    ):
        call(**SQUARE | {"query_position": where, "key_position": where}, encoding=GridBias((2, 9), H))


def test_heads_and_widths():
    heads = "the heads of query [2, 4, 6, 8]; make it with num_heads=4"
    for encoding in (GridBias((2, 3), 3), LogGridBias((2, 3), 3)):
        name = "GridBias" if isinstance(encoding, GridBias) else "FunctionBias"
        with refused(ShapeError, f"{name} num_heads: got 3; expected 4, {heads}"):
            call(**SQUARE, encoding=encoding)
    with refused(ShapeError, "relative_keys: got 3 heads ([3, 15, 8]); expected 4, the query's; make the encoding ..."):
        call(**SQUARE, encoding=GridEmbedding(D, (2, 3), num_heads=3))
    with refused(ShapeError, "relative_keys: got width 4 ([1, 15, 4]); expected 8, the width of the relative ..."):
        call(**SQUARE, encoding=GridEmbedding(4, (2, 3)))


def test_the_shape_that_a_function_of_two_axes_returns():
    said = "FunctionBias function: returned shape [15, 2] for 15 offsets; expected [4, 15], a number per head and ..."
    with refused(ShapeError, said):
        call(**SQUARE, encoding=FunctionBias(lambda d: d, H, axes=("y", "x")))


# --- constructors


SEQUENCE_ALONE = "expected one of the sequence; make another for another axis"
REFUSED_ONS: dict[str, tuple[Callable[[], Any], str]] = {
    "twice": (
        lambda: RelativeEmbedding(D, 2).on("x").on("y"),
        f"RelativeEmbedding.on: got one that stands on 'x'; {SEQUENCE_ALONE}",
    ),
    "of several": (
        lambda: GridBias((2, 3), H).on("z"),
        f"GridBias.on: got one that stands on 'y', 'x'; {SEQUENCE_ALONE}",
    ),
    **{
        repr(name): (
            lambda name=name: T5Bias(H).on(name),
            f"T5Bias.on: got {name!r}; expected the name of an axis other than 'sequence'",
        )
        for name in ("sequence", "", 3, None)
    },
    "terms twice": (
        lambda: ScoreTerms(bias=OffsetTable(ones(1, 1), 0)).on("x").on("y"),
        "ScoreTerms on: got terms on 'x'; expected terms of the sequence alone",
    ),
    **{
        f"terms {names}": (
            lambda names=names: ScoreTerms().on(*names),
            f"ScoreTerms on: got {names!r}; expected names of axes, one at least other than 'sequence'",
        )
        for names in ((), (3,), ("sequence",))
    },
}


@pytest.mark.parametrize("what", REFUSED_ONS)
def test_on(what):
    make, said = REFUSED_ONS[what]
    with refused(ValueError, said):
        make()


def test_a_rotation_on_each_of_two_axes():
    with refused(UnsupportedError, "sum of encodings: two operands rotate the queries and keys; no paper ..."):
        RotaryEmbedding(D).on("y") + RotaryEmbedding(D).on("x")


def test_a_sum_moves_those_that_are_not_moved_yet():
    total = (T5Bias(H) + T5Bias(H).on("x") + GridBias((2, 3), H)).on("z")
    assert [operand.axes for operand in total.encodings] == [("z",), ("x",), ("y", "x")]
    assert total.axes == ("z", "x", "y")


@pytest.mark.parametrize(
    "terms",
    [None, 3, "abc", ((1, 2),), ((1, 2, 3, 4),), ((1, 0, 3),), ((1, 1, 0),), ((1.5, 1, 1),), [(1, 1, True)]],
    ids=repr,
)
def test_terms_of_digits(terms):
    said = (
        f"GridPositions terms: got {terms!r}; expected (step, repeat, length) of each digit, three ints, the last two "
    )
    with refused(ValueError, said + "of at least 1"):
        GridPositions(terms)


def test_numbers_of_digits():
    for came in (1.5, None, True):
        with refused(ValueError, f"GridPositions start: got {came!r}; expected an int"):
            GridPositions((), start=came)
    for name in ("first", "prefix_tokens"):
        for came in (-1, 1.5, True):
            with refused(ValueError, f"GridPositions {name}: got {came!r}; expected an int of at least 0"):
                GridPositions((), **{name: came})


PART = "grid first, length: got {0} and {1}; expected a part of the {2}"
REFUSED_GRIDS: list[tuple[tuple, dict[str, Any], str]] = [
    ((), {}, "grid sizes: got 0 of them; expected one to 3, or names for the axes"),
    ((2, 2, 2, 2), {}, "grid sizes: got 4 of them; expected one to 3, or names for the axes"),
    ((0, 3), {}, "grid sizes: got 0; expected an int of at least 1"),
    ((2, 1.5), {}, "grid sizes: got 1.5; expected an int of at least 1"),
    ((2, 3), {"prefix_tokens": -1}, "grid prefix_tokens: got -1; expected an int of at least 0"),
    ((2, 3), {"prefix_tokens": True}, "grid prefix_tokens: got True; expected an int of at least 0"),
    ((2, 3), {"first": -1}, "grid first: got -1; expected an int of at least 0"),
    ((2, 3), {"length": 1.5}, "grid length: got 1.5; expected an int of at least 0"),
    ((2, 3), {"length": -1}, "grid length: got -1; expected an int of at least 0"),
    ((2, 3), {"first": 7}, PART.format(7, None, "6 tokens of 2 x 3")),
    ((2, 3), {"first": 2, "length": 5}, PART.format(2, 5, "6 tokens of 2 x 3")),
    ((2, 3), {"prefix_tokens": 2, "length": 9}, PART.format(0, 9, "8 tokens of 2 x 3 and 2 before them")),
]


@pytest.mark.parametrize(("sizes", "keywords", "said"), REFUSED_GRIDS, ids=str)
def test_grids(sizes, keywords, said):
    with refused(ValueError, said):
        grid(*sizes, **keywords)


@pytest.mark.parametrize("names", [("a",), ("a", "a"), ("a", "sequence"), ("a", 3), ("a", ""), "ab"], ids=repr)
def test_names_of_a_grid(names):
    said = f"grid names: got {names!r} for 2 sizes; expected as many different names, none of them 'sequence', which "
    with refused(ValueError, said + "is the order of the tokens"):
        grid(2, 3, names=names)


JOINT = {
    "GridBias": lambda sizes=(2, 3), **k: GridBias(sizes, H, **k),
    "GridEmbedding": lambda sizes=(2, 3), **k: GridEmbedding(D, sizes, **k),
    "LogGridBias": lambda sizes=(2, 3), **k: LogGridBias(sizes, H, **k),
}


@pytest.mark.parametrize("name", JOINT)
def test_sizes_and_axes(name):
    for sizes, came in (((2, 0), 0), ((2.5, 2), 2.5), ("23", "'23'"), ((True, 2), True)):
        with refused(ValueError, f"{name} sizes: got {came}; expected an int of at least 1"):
            JOINT[name](sizes)
    with refused(ValueError, f"{name} sizes: got (); expected an int of at least 1 for each axis, such as (7, 7)"):
        JOINT[name]((), axes=())
    for axes in (("y",), ("y", "y"), "yx", ("y", 3), ("t", "y", "x"), None):
        said = f"{name} axes: got {axes!r}; expected 2 different names of axes, one for each size, such as ('y', 'x')"
        with refused(ValueError, said):
            JOINT[name](axes=axes)


@pytest.mark.parametrize("name", ["GridBias", "GridEmbedding"])
def test_resized(name):
    with refused(ValueError, f"{name} sizes: got 0; expected an int of at least 1"):
        JOINT[name]().resized((0, 3))
    with refused(ValueError, f"{name} axes: got ('y', 'x'); expected 1 different names of axes, one for each ..."):
        JOINT[name]().resized((2,))
    with refused(ValueError, "interpolation: got 'nearest'; expected one of 'bicubic', 'bilinear'"):
        JOINT[name]().resized((2, 3), interpolation="nearest")


def test_other_arguments_of_joint_tables():
    for came in (1, 2, True, "3", None):
        with refused(ValueError, f"extra: got {came!r}; expected 0, or 3 for the rows of a class token"):
            GridBias((2, 3), H, extra=came)
    with refused(ValueError, "sizes: got 1000000000 with num_heads=4; expected a size whose parameters fit into ..."):
        GridBias((10**9, 10**9), H)
    with refused(ValueError, "LogGridBias pretrained_sizes: got (2,) beside sizes (2, 3); expected as many"):
        LogGridBias((2, 3), H, pretrained_sizes=(2,))
    with refused(ValueError, "LogGridBias pretrained_sizes: got 0; expected an int of at least 1"):
        LogGridBias((2, 3), H, pretrained_sizes=(2, 0))
    with refused(ValueError, "hidden: got 0; expected an int of at least 1"):
        LogGridBias((2, 3), H, hidden=0)
    for axes in ((), "x", ("x", "x")):
        with refused(ValueError, f"FunctionBias axes: got {axes!r}; expected different names of axes, such as ..."):
            FunctionBias(torch.cos, H, axes=axes)


# --- backends


def test_sdpa_takes_the_sequence_alone():
    for encoding in (GridBias((2, 3), H), T5Bias(H) + T5Bias(H).on("x")):
        with refused(UnsupportedError, "backend='sdpa' cannot run this: ...it has no bias...") as refusal:
            call(**SQUARE, encoding=encoding, backend="sdpa")
        assert "it has no bias" in refusal.value.reasons["sdpa"]


def test_flex_score_mod_takes_axes_where_the_encoding_is_a_bias():
    places = {"query_position": GRID, "key_position": GRID}
    with refused(ValueError, NOBODY.format("GridBias", "y", "'sequence'") + "..."):
        flex_score_mod(GridBias((2, 3), H), ones(2, H, 6, D), ones(2, H, 6, D))
    with refused(UnsupportedError, "encoding: got GridEmbedding, which multiplies queries with relative keys; ..."):
        flex_score_mod(GridEmbedding(D, (2, 3)), ones(2, H, 6, D), ones(2, H, 6, D), **places)
