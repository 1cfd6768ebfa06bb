"""The kernels as compiled for sm_80 (a few for sm_90), in the sizes that a GPU runs, against the equation in float64.

Lengths cross a tile and fill none; what lies beyond a tensor's last row and column is NaN, as is what a kernel should
write and does not; and whatever a GPU need not do as it is meant is a fault.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from relattn.backends.triton.host.call import Call
from relattn.equation.problem import Part
from relattn.positions.grid import GridPositions, grid
from tests.triton.calls import with_ranges
from tests.triton.test_kernels import TABLES, hold_to_the_equation, make_call

pytest.importorskip("triton", reason="Triton is a package for Linux")
pytestmark = [
    pytest.mark.ptx,
    pytest.mark.skipif("TRITON_INTERPRET" in os.environ, reason="the interpreter's kernels cannot be compiled"),
]

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
WIDE, MIDDLE, NARROW = (128, 8, 2), (64, 4, 2), (32, 4, 2)
STAGES, TWO_WARPS, ONE_WARP = (64, 4, 3), (16, 2, 2), (16, 1, 2)
SEVERAL, MORE = (32, 4, 2, 4), (32, 8, 2, 8)  # tiles of queries of a program
SMALL, SMALLEST, LARGER = (16, 4, 2), (16, 4, 1), (32, 4, 2)  # of float32, and of explicit axes
EIGHT_WARPS = (16, 8, 1)  # of float32 with more tables, or wider
ONE_EXPLICIT, TWO_EXPLICIT = (16, 1, 1), (16, 2, 1)
OF_PAIRS = (32, 2, 2)  # where every product is as wide as a tile
SQUARE = {"lengths": (70, 70), "offset": 0, "widths": (64, 64, 64), "aligned": True}
FULL = {"rows": 141, "first": -69}
"""A row for every offset of 70 by 70, whichever table: nothing is beyond."""
ONE = {"heads": (1, 1)}
EXPLICIT = {"lengths": (18, 21), "widths": (16, 16, 16), "tables": ()}
"""Many instructions for few pairs."""
BLOCKS = {"rows": 70, "first": -35}
"""More rows than a tile has at once, none of them beyond."""
OTHER = {"number": 1, "own": 8}
ROWS, COLUMNS = ({"number": n, "digits": grid(6, 7, prefix_tokens=2)[name]} for n, name in enumerate("yx", start=1))
FAR = GridPositions(((1, 3, 5), (5, 15, 2**60)), first=2**61 + 11, start=-(2**50), prefix_tokens=3, off_grid=2**55)
SEQUENCE = {"number": 0, "lowest": -9, "highest": 12, "far": 2**40}

EVERY_TIME: dict[str, tuple[torch.dtype, tuple[int, ...], dict[str, Any]]] = {
    "no table": (BF16, MIDDLE, {**SQUARE, "tables": ()}),
    "relative keys": (BF16, MIDDLE, {**SQUARE, **FULL, "tables": TABLES[:1], "shared": True, "highest": 0}),
    "relative keys, several tiles of queries": (
        BF16,
        SEVERAL,
        {**SQUARE, **ONE, "lengths": (140, 70), "offset": -60, "tables": TABLES[:1], "rows": 300, "first": -220},
    ),
    "keys and values, 128 wide": (
        BF16,
        TWO_WARPS,
        {**SQUARE, **ONE, "lengths": (34, 40), "widths": (128,) * 3, "tables": TABLES[:3:2], "rows": 21, "first": -10},
    ),
    "relative queries": (BF16, NARROW, {**SQUARE, **ONE, "tables": ("relative_queries",), "rows": 33, "first": -16}),
    "relative values": (BF16, MIDDLE, {**SQUARE, **ONE, "tables": ("relative_values",), "rows": 33, "first": -16}),
    "a bias": (BF16, STAGES, {**SQUARE, **FULL, "tables": ("bias",), "highest": 0}),
    "all tables, masks": (BF16, STAGES, {"lengths": (70, 100), "masks": "ksp"}),
    "float16": (F16, MIDDLE, {"lengths": (70, 66), "rows": 60, "first": -30}),
    "float32": (F32, SMALL, {"lengths": (40, 50)}),
    "float32 in parts": (F32, ONE_WARP, {**SQUARE, **ONE, "tables": TABLES[3:], "precision": "tf32x3"}),
    "dropout": (BF16, NARROW, {"lengths": (40, 50), "dropout_p": 0.3, "seed": 12345678901}),
    "several owners of two tiles": (
        F16,
        NARROW,
        {
            **ONE,
            "lengths": (40, 150),
            "offset": torch.tensor(-60),
            "tables": TABLES[:1],
            "rows": 200,
            "first": -110,
            "dropout_p": 0.3,
            "seed": 7,
        },
    ),
    "groups of heads": (
        BF16,
        MIDDLE,
        {"heads": (6, 2), "lengths": (66, 65), "widths": (64, 64, 64), "tables": TABLES[:1]},
    ),
    "few queries": (
        BF16,
        MIDDLE,
        {**SQUARE, "lengths": (3, 300), "offset": -297, "highest": 0, "rows": 33, "first": -16},
    ),
    "a window": (BF16, STAGES, {**SQUARE, "lowest": -20, "highest": 10, "tables": TABLES[:2], "batch": 2}),
    "whole tiles": (
        BF16,
        STAGES,
        {**SQUARE, **FULL, **ONE, "lengths": (64, 192), "offset": -128, "tables": TABLES[:1]},
    ),
    "before, within and after clipped tables": (
        BF16,
        NARROW,
        {**ONE, "lengths": (34, 150), "offset": -70, "rows": 9, "first": -4},
    ),
    "a cap and a key bias": (BF16, NARROW, {**SQUARE, "tables": TABLES[:1], "softcap": 1.5, "key_bias": True}),
    "a float mask": (BF16, NARROW, {**SQUARE, "tables": TABLES[:1], "added": "hqk", "highest": 0}),
    "without tables, 128": (
        BF16,
        WIDE,
        {**SQUARE, **ONE, "lengths": (140, 200), "offset": -60, "tables": (), "highest": 0},
    ),
    "an explicit sequence": (
        BF16,
        SMALLEST,
        {**EXPLICIT, "axes": ({**SEQUENCE, **BLOCKS, "own": 40, "tables": TABLES[:2]},)},
    ),
    "another axis": (
        BF16,
        LARGER,
        {**EXPLICIT, "lengths": (34, 35), "tables": TABLES[:1], "highest": 0, "axes": ({"number": 1, **BLOCKS},)},
    ),
    "rows of a grid": (BF16, SMALLEST, {**EXPLICIT, "tables": TABLES[:1], "axes": (ROWS,)}),
    "a start that is a tensor": (
        BF16,
        NARROW,
        {"lengths": (40, 50), "offset": torch.tensor(-7), "lowest": -30, "highest": 5},
    ),
}
"""Run by `make test-all`."""

NOW_AND_THEN: dict[str, tuple[torch.dtype, tuple[int, ...], dict[str, Any]]] = {
    f"{name} in {str(dtype).removeprefix('torch.')}, {sizes}": (dtype, sizes, {**SQUARE, "tables": tables, **extent})
    for name, tables, extent in (
        ("clipped relative keys", TABLES[:1], {"rows": 33, "first": -16}),
        ("relative queries", TABLES[1:2], FULL),
        ("relative values", TABLES[2:3], FULL),
        ("relative keys and values", (TABLES[0], TABLES[2]), {"rows": 33, "first": -16}),
        ("a clipped bias", TABLES[3:], {"rows": 33, "first": -16, "highest": 0}),
        ("all tables", TABLES, {**FULL, "highest": 0}),
    )
    for dtype, sizes in ((BF16, MIDDLE), (BF16, STAGES), (F16, NARROW), (F32, SMALL))
}
NOW_AND_THEN |= {
    f"{name}, {sizes[3]} tiles of queries": (F16, sizes, {**SQUARE, "lengths": (280, 70), "offset": -200, **given})
    for name, given in {
        "no table": {"tables": (), "highest": 0},
        "relative keys": {"tables": TABLES[:1], "rows": 500, "first": -490, "highest": 0, "batch": 2},
        "clipped relative keys": {"tables": TABLES[:1], "rows": 33, "first": -16, "heads": (4, 2), "shared": True},
        "a bias": {"tables": TABLES[3:], "rows": 33, "first": -16, "lowest": -90, "highest": 60, "masks": "k"},
        "clipped keys, values and bias": {"tables": (TABLES[0], *TABLES[2:]), "rows": 33, "first": -16, **ONE},
        "a cap, a key bias, masks": {"tables": TABLES[:1], "softcap": 1.5, "key_bias": True, "masks": "sp"},
        "a float mask": {"tables": TABLES[:1], "added": "hqk", "zero": True},
        "a start that is a tensor": {"tables": TABLES[:1], "offset": torch.tensor(-200), "widths": (48, 40, 64)},
    }.items()
    for sizes in (SEVERAL, MORE)
}
NOW_AND_THEN |= {
    "zero beyond": (BF16, MIDDLE, {"lengths": (70, 100), "rows": 20, "first": -11, "zero": True}),
    "tables beyond every offset": (BF16, STAGES, {"lengths": (66, 70), "rows": 301, "first": -150}),
    "tables right of every offset": (BF16, MIDDLE, {"lengths": (66, 70), "rows": 4, "first": 160}),
    "before, within and after, three stages": (
        BF16,
        STAGES,
        {**SQUARE, **ONE, "lengths": (66, 330), "offset": -140, "rows": 9, "first": -4, "tables": TABLES[:1]},
    ),
    "before, within and after, zero beyond": (F16, NARROW, {**ONE, "lengths": (34, 150), "offset": -70, "rows": 9,
                                                            "first": -4, "zero": True}),
    "one row": (BF16, NARROW, {"lengths": (40, 50), "rows": 1, "first": 0}),
    "rows that see nothing": (BF16, MIDDLE, {"lengths": (70, 90), "lowest": -3, "highest": -1, "offset": -50}),
    "no row sees anything": (BF16, MIDDLE, {"lengths": (70, 66), "highest": 0, "offset": 500}),
    "masks in float32": (F32, SMALLEST, {"lengths": (20, 37), "masks": "ksp", "lowest": -9, "batch": 2}),
    "a key mask": (BF16, STAGES, {**SQUARE, "tables": TABLES[:1], "masks": "k"}),
    "segments": (BF16, MIDDLE, {**SQUARE, "tables": TABLES[:1], "masks": "s"}),
    "a pair mask": (F16, MIDDLE, {**SQUARE, "tables": TABLES[3:], "masks": "p"}),
    "a float mask for all queries": (F16, MIDDLE, {**SQUARE, "tables": TABLES[3:], "added": "bk", "batch": 2}),
    "a float mask for all keys": (BF16, STAGES, {"lengths": (70, 66), "added": "q", "masks": "k"}),
    "a float mask in float32": (F32, SMALLEST, {"lengths": (20, 37), "added": "bhqk", "lowest": -9, "batch": 2}),
    "a float mask, few queries": (BF16, MIDDLE, {"lengths": (3, 140), "offset": -135, "added": "qk"}),
    "dropout and masks": (F16, STAGES, {"lengths": (70, 66), "dropout_p": 0.4, "seed": 7, "masks": "kp"}),
    "dropout in float32": (F32, SMALL, {"lengths": (33, 40), "dropout_p": 0.5, "seed": 2**62 + 1, "tables": ()}),
    "dropout of a part": (BF16, MIDDLE, {"lengths": (70, 66), "dropout_p": 0.4, "seed": 7, "part": Part(64, 3, 1, 5)}),
    "dropout of a part, no multiple of 4": (BF16, NARROW, {"lengths": (40, 36), "dropout_p": 0.4, "seed": 7,
                                                           "part": Part(6, 3, 1, 5)}),
    "the query itself": (BF16, MIDDLE, {"lengths": (70, 66), "shared": True, "rows": 20, "first": -11}),
    "groups of heads, all tables": (F16, NARROW, {"heads": (6, 2), "lengths": (34, 33), "batch": 2}),
    "one key": (BF16, MIDDLE, {"lengths": (70, 1)}),
    "one query": (BF16, MIDDLE, {**SQUARE, **ONE, "lengths": (1, 200), "offset": -199, "masks": "k"}),
    "few queries, dropout": (F16, NARROW, {"lengths": (5, 140), "offset": -135, "dropout_p": 0.3, "seed": 5}),
    "few queries in float32": (F32, SMALL, {"lengths": (8, 70), "lowest": -60, "offset": -67, "batch": 2}),
    "one head, one batch element": (BF16, STAGES, {**ONE, "lengths": (66, 130), "highest": 0, "offset": -64}),
    "narrow": (BF16, MIDDLE, {"widths": (16, 16, 16), "lengths": (70, 66)}),
    "uneven widths": (BF16, STAGES, {"widths": (40, 72, 56), "lengths": (66, 65), "heads": (2, 2)}),
    "uneven widths, small tiles": (BF16, TWO_WARPS, {"widths": (40, 72, 56), "lengths": (34, 37), "heads": (2, 2),
                                                  "tables": (TABLES[0], *TABLES[2:])}),
    "128 wide": (BF16, MIDDLE, {**SQUARE, **ONE, "widths": (128, 128, 128), "tables": TABLES[:1], "highest": 0}),
    "float32 under eight warps": (F32, EIGHT_WARPS, {**ONE, "lengths": (20, 37), "added": "hqk"}),
    "float32 under eight warps, two stages": (F32, (16, 8, 2), {**ONE, "lengths": (20, 37)}),
    "a cap in float32": (F32, SMALL, {"lengths": (33, 40), "softcap": 20.0}),
    "a key bias, every table": (F16, MIDDLE, {"lengths": (70, 66), "key_bias": True, "softcap": 0.7, "masks": "k"}),
    "wide": (BF16, TWO_WARPS, {**ONE, "widths": (250, 256, 130), "lengths": (33, 40)}),
    "wide without tables": (BF16, MIDDLE, {**ONE, "widths": (250, 256, 250), "lengths": (66, 70), "tables": ()}),
    "wide relative keys in float32": (F32, EIGHT_WARPS, {**ONE, "widths": (72, 72, 80), "lengths": (20, 37),
                                                         "tables": TABLES[:1], "highest": 0}),
    "wide in float32": (F32, SMALLEST, {**ONE, "widths": (250, 256, 130), "lengths": (20, 17)}),
    "128 and dropout": (F16, WIDE, {**SQUARE, "lengths": (130, 140), "tables": (), "dropout_p": 0.2, "seed": 3}),
    "an explicit sequence, every table": (F16, SMALLEST, {**EXPLICIT, "batch": 2, "axes": (SEQUENCE,)}),
    "an explicit sequence in float32": (F32, SMALLEST, {**EXPLICIT, "axes": ({**SEQUENCE, "zero": True},)}),
    "an explicit sequence, few queries": (BF16, MIDDLE, {**EXPLICIT, "lengths": (3, 70),
                                                       "axes": ({**SEQUENCE, "own": 8},)}),
    "an explicit sequence and another axis": (BF16, LARGER, {**EXPLICIT, "lengths": (34, 35),
                                                           "axes": (SEQUENCE, OTHER)}),
    "an explicit sequence, 64 wide": (BF16, LARGER, {**EXPLICIT, **ONE, "widths": (64, 64, 64), "lengths": (34, 35),
                                                  "axes": ({**SEQUENCE, **BLOCKS},)}),
    "an explicit sequence, one warp": (F16, ONE_EXPLICIT, {**EXPLICIT, "axes": ({**SEQUENCE, **BLOCKS, "own": 8},)}),
    "an explicit sequence, two warps": (BF16, TWO_EXPLICIT, {**EXPLICIT, "axes": (SEQUENCE,)}),
    "another axis, few queries": (F16, MIDDLE, {**EXPLICIT, "tables": TABLES, "lengths": (3, 70), "axes": (OTHER,)}),
    "another axis, every table beside": (F16, SMALLEST, {**EXPLICIT, "tables": TABLES, "batch": 2, "axes": (OTHER,)}),
    "another axis, a cap and a key bias": (BF16, SMALLEST, {**EXPLICIT, "softcap": 1.5, "key_bias": True,
                                                            "heads": (4, 2), "axes": (OTHER,)}),
    "another axis, masks and dropout": (F32, SMALLEST, {**EXPLICIT, "masks": "ksp", "dropout_p": 0.3, "seed": 4,
                                                        "axes": (OTHER,)}),
    "another axis, a float mask": (BF16, SMALLEST, {**EXPLICIT, "added": "hk", "axes": ({"number": 2, "zero": True},)}),
    "columns of a grid": (BF16, ONE_EXPLICIT, {**EXPLICIT, "heads": (4, 2), "axes": ({**COLUMNS, "own": 8},)}),
    "rows and columns of a grid, few queries": (F16, MIDDLE, {**EXPLICIT, "lengths": (3, 40), "axes": (ROWS, COLUMNS)}),
    "digits, far along": (F32, SMALLEST, {**EXPLICIT, "axes": ({"number": 0, "digits": FAR, "highest": 0},)}),
    "a start that is a tensor, few queries": (BF16, MIDDLE, {"lengths": (3, 140), "offset": torch.tensor(-135),
                                                             "highest": 0, "lowest": -90}),
    "a start that is a tensor, in float32": (F32, SMALLEST, {"lengths": (20, 37), "offset": torch.tensor(4),
                                                             "lowest": -9, "zero": True}),
    "a start that is a tensor, far out": (BF16, STAGES, {"lengths": (70, 66), "offset": torch.tensor(2**40),
                                                         "rows": 20, "masks": "k"}),
    "three stages, many tiles": (BF16, STAGES, {**SQUARE, **ONE, "lengths": (70, 400), "offset": -330, "rows": 600,
                                               "first": -400, "tables": TABLES[:1], "shared": True, "highest": 0}),
    "a float mask, one head": (BF16, OF_PAIRS, {**SQUARE, **ONE, "tables": TABLES[:1], "added": "hqk"}),
    "a float mask and dropout, one warp": (BF16, ONE_WARP, {**SQUARE, **ONE, "lengths": (34, 40), "tables": TABLES[:1],
                                                            "added": "hqk", "dropout_p": 0.3, "seed": 11}),
    "a float mask and dropout, two warps": (BF16, TWO_WARPS, {**ONE, "widths": (250, 256, 130), "lengths": (33, 40),
                                                              "tables": TABLES[3:], "added": "bhqk", "dropout_p": 0.3,
                                                              "seed": 12}),
    "a float mask, 128 rows": (BF16, WIDE, {**SQUARE, **ONE, "lengths": (140, 150), "tables": (), "added": "qk"}),
    "a float mask in float32, in parts": (F32, ONE_WARP, {**ONE, "lengths": (20, 37), "tables": TABLES[:1],
                                                          "added": "hqk", "precision": "tf32x3"}),
    "a float mask and dropout in float32": (F32, SMALL, {**ONE, "lengths": (20, 37), "tables": TABLES[3:],
                                                         "added": "hqk", "dropout_p": 0.3, "seed": 13}),
    "a clipped bias": (BF16, STAGES, {**SQUARE, "tables": TABLES[3:], "rows": 33, "first": -16, "highest": 0}),
    "a bias, several tiles of queries": (F16, MORE, {**SQUARE, **ONE, "lengths": (270, 70), "offset": -150,
                                                     "tables": TABLES[3:], "rows": 300, "first": -190}),
    "a bias, two warps": (BF16, OF_PAIRS, {**SQUARE, "tables": TABLES[3:], "rows": 33, "first": -16}),
    "float32 in parts, two warps": (F32, TWO_WARPS, {"lengths": (35, 40), "precision": "tf32x3"}),
    "float32 in parts, larger tiles": (F32, LARGER, {**ONE, "lengths": (40, 50), "precision": "tf32x3"}),
    "float32, larger tiles": (F32, LARGER, {**ONE, "lengths": (40, 50), "tables": (), "added": "hqk"}),
    "every table in float32, larger tiles": (F32, LARGER, {**ONE, "lengths": (40, 50)}),
    "float32, tiles of 64": (F32, MIDDLE, {**SQUARE, **ONE, "tables": (), "added": "hqk"}),
    "128 wide, explicit": (BF16, TWO_EXPLICIT, {**EXPLICIT, **ONE, "widths": (128, 128, 128), "tables": TABLES[:1],
                                                   "added": "hqk", "axes": ({"number": 1, "tables": TABLES[:1]},)}),
    "explicit in float32 under eight warps": (F32, EIGHT_WARPS, {**EXPLICIT, **ONE, "tables": TABLES[:1],
                                                             "added": "hqk", "axes": (OTHER,)}),
    "explicit in parts": (F32, SMALLEST, {**EXPLICIT, **ONE, "tables": TABLES[:1], "added": "hqk",
                                         "precision": "tf32x3",
                                         "axes": ({**OTHER, "tables": (TABLES[0], TABLES[3])},)}),
    "explicit alone in float32 under eight warps": (F32, EIGHT_WARPS, {**EXPLICIT, **ONE, "axes": (OTHER,)}),
    "explicit alone in parts": (F32, SMALLEST, {**EXPLICIT, **ONE, "precision": "tf32x3",
                                             "axes": ({**OTHER, "tables": (TABLES[0], TABLES[3])},)}),
    "a bias on an axis": (BF16, TWO_EXPLICIT, {**EXPLICIT, "axes": ({"number": 1, "tables": TABLES[3:]},)}),
    "one row on an axis": (F16, TWO_EXPLICIT, {**EXPLICIT, "axes": ({"number": 1, "rows": 1, "first": 0},)}),
    "explicit and masks, three axes": (F16, TWO_EXPLICIT, {**EXPLICIT, "added": "hk", "lengths": (18, 17), "axes": (
        {"number": 1, "own": 8}, {"number": 2, "tables": TABLES[:2]}, {"number": 3, "tables": TABLES[3:]})}),
}  # fmt: skip
"""Run with the others by `make test-ptx`."""


@pytest.fixture(autouse=True)
def unwritten_is_nan() -> Iterator[None]:
    """New tensors hold NaN."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(before)


IN_ORDER = (
    "relative keys", "relative queries", "all tables, masks", "float32", "groups of heads", "dropout",
    "several owners of two tiles", "an explicit sequence", "another axis", "a start that is a tensor",
)  # fmt: skip
"""Of these every time also the kernels of the deterministic backward pass."""


ON_HOPPER = (
    "relative queries", "uneven widths, small tiles", "keys and values, 128 wide", "several owners of two tiles",
    "float32 in parts", "rows of a grid",
)  # fmt: skip
"""Of these the first runs every time as compiled for sm_90."""


def now_and_then(names: Iterable[str]) -> Iterator[Any]:
    """Run by `make test-ptx` alone."""
    return (pytest.param(name, marks=pytest.mark.slow) for name in names)


def hold(name: str, monkeypatch: pytest.MonkeyPatch, ordered: bool, capability: int = 80) -> None:
    from relattn.backends.triton.kernels import backward
    from tests.triton.ptx.launch import emulate

    dtype, sizes, given = (EVERY_TIME | NOW_AND_THEN)[name]
    emulate(sizes, monkeypatch, capability)
    monkeypatch.setattr(backward, "is_deterministic", lambda call, wanted: ordered)
    hold_to_the_equation(make_call(dtype, **given))


@pytest.mark.parametrize("name", [*EVERY_TIME, *now_and_then(NOW_AND_THEN)])
def test_output_and_every_gradient(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hold(name, monkeypatch, ordered=False)


@pytest.mark.parametrize(
    "name", [*IN_ORDER, *now_and_then(name for name in (*EVERY_TIME, *NOW_AND_THEN) if name not in IN_ORDER)]
)
def test_every_gradient_in_a_fixed_order(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hold(name, monkeypatch, ordered=True)


@pytest.mark.parametrize("name", [ON_HOPPER[0], *now_and_then(ON_HOPPER[1:])])
def test_as_compiled_for_an_h100(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In tiles that are too small for its newer products, which are not modelled. Additions of four numbers at once."""
    hold(name, monkeypatch, ordered=False, capability=90)


def of_documents(queries: tuple[int, ...], keys: tuple[int, ...], **given: Any) -> Call:
    """In bfloat16; documents of these lengths, one after the other."""
    sides = [torch.repeat_interleave(torch.arange(len(side)), torch.tensor(side))[None] for side in (queries, keys)]
    call = make_call(BF16, **{**SQUARE, **ONE, "lengths": (sum(queries), sum(keys)), "tables": TABLES[:1], **given})
    return replace(call, query_segments=sides[0], key_segments=sides[1])


DOCUMENTS: dict[str, tuple[tuple[int, ...], bool, dict[str, Any]]] = {
    "several tiles of queries": (SEVERAL, False, {"queries": (60, 80), "keys": (50, 40), "rows": 300, "first": -150}),
    "in order": (NARROW, True, {"queries": (40, 34), "keys": (33, 60), **FULL, "highest": 0}),
    "few queries": (MIDDLE, False, {"queries": (1, 2), "keys": (110, 90), **FULL}),
}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_documents(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Walks that begin and end where a document does."""
    from relattn.backends.triton.kernels import backward
    from tests.triton.ptx.launch import emulate

    sizes, ordered, given = DOCUMENTS[name]
    emulate(sizes, monkeypatch)
    monkeypatch.setattr(backward, "is_deterministic", lambda call, wanted: ordered)
    hold_to_the_equation(with_ranges(of_documents(**given)))


@pytest.mark.parametrize("ordered", [False, True])
def test_products_of_visible_tiles_alone(ordered: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three by three tiles of 32 two documents see five: so many of the tensor cores' products are carried out."""
    from relattn.backends.triton.kernels import backward
    from tests.triton.ptx import launch

    products = [0]

    def counted(step: Callable[..., None]) -> Callable[..., None]:
        def counting(threads: Any, operands: Any) -> None:
            products[-1] += len(threads.programs)
            step(threads, operands)

        return counting

    steps = {name: counted(step) if name.startswith("mma.") else step for name, step in launch.STEPS.items()}
    monkeypatch.setattr(launch, "STEPS", steps)
    launch.emulate(NARROW, monkeypatch)
    monkeypatch.setattr(backward, "is_deterministic", lambda call, wanted: ordered)
    call = of_documents((32, 38), (32, 38), tables=())
    hold_to_the_equation(call)
    products.append(0)
    hold_to_the_equation(with_ranges(call))
    assert products[0] > 0 and 9 * products[1] == 5 * products[0]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [BF16, F16])
def test_tables_in_float32_beside_half_precision(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table is two numbers of bfloat16 beside bfloat16; beside float16 products have three parts of float32."""
    from tests.triton.ptx.launch import emulate

    emulate(NARROW, monkeypatch)
    call = make_call(dtype, lengths=(35, 40))
    tables = {name: getattr(call, name) for name in TABLES}
    wider = {name: table._replace(values=table.values.float()) for name, table in tables.items()}
    hold_to_the_equation(replace(call, **wider))
