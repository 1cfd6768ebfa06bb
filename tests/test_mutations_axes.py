"""The contract's comparison sees mistakes of axes: exchanged, reversed, off by one, or read by prefix tokens.

One mistake each, as in `test_mutations`, made where the library turns positions on other axes into offsets and rows.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from relattn import GridPositions, OffsetTable, ScoreTerms
from relattn.backends.select import BACKENDS
from relattn.checks import positions as check_positions
from relattn.encodings.grid import _GridTable
from relattn.equation.problem import Axis, Problem
from relattn.positions import places
from relattn.positions.contiguous import ContiguousPositions
from relattn.positions.explicit import ExplicitPositions
from relattn.positions.position import Position
from tests.contract.axes import AXES_CASES
from tests.contract.blocks import TESTED_BACKENDS
from tests.contract.check import assert_red, check
from tests.contract.places import Place, on_a_grid
from tests.contract.settings import Setting
from tests.contract.subject import Subject, make_subject

pytestmark = pytest.mark.one_in(6)

pytest_plugins = ["tests.contract.fresh"]

Patch = pytest.MonkeyPatch
RUNNING = [backend for backend in TESTED_BACKENDS if backend != "sdpa"]
SIZES = (2, 3)
EXPLICIT = {
    "y": (np.array([0, 2, 1, 1, 0]), np.array([[1, 0, 2, 2, 1, 0], [2, 2, 0, 1, 0, 1]])),
    "x": (np.array([3, 0, 1, 2, 1]), np.array([[0, 3, 1, 2, 0, 1], [1, 0, 2, 3, 3, 0]])),
}


def subject_of(name: str, layout: str, rng: np.random.Generator) -> Subject:
    """A part of a grid beside the whole one, or explicit positions; causal, so that some pairs are hidden."""
    if layout == "explicit":
        axes = {axis: (Place(query, query), Place(key, key)) for axis, (query, key) in EXPLICIT.items()}
    else:
        prefix_tokens = 1 if layout == "class token" else 0
        whole = on_a_grid(("y", "x"), SIZES, prefix_tokens, first=0, length=prefix_tokens + 6)
        part = on_a_grid(("y", "x"), SIZES, prefix_tokens, first=0, length=5)
        axes = {axis: (part[axis], whole[axis]) for axis in ("y", "x")}
    lengths = (side.positions.shape[-1] for side in axes["y"])
    setting = Setting(2, 4, 2, *lengths, 4, 4, key_position=-2, axes=axes, seed=int(rng.integers(2**32)))
    return make_subject(AXES_CASES[name], replace(setting, is_causal=True, window=(5, None)))


def places_of(*names: str) -> pytest.MarkDecorator:
    """Each of the cases on every backend and layout; BEiT's table is for a grid."""
    every = [
        (name, backend, layout)
        for name in names
        for backend in RUNNING
        for layout in ("grid", "class token", "explicit")
        if not (name == "beit" and layout == "explicit")
    ]
    return pytest.mark.parametrize(("name", "backend", "layout"), every, indirect=["backend"])


@places_of("swin", "swin_larger_table", "beit", "grid_embedding", "sam", "shaw_on_both", "key_query_on_both")
def test_control_is_green(name: str, backend: str, layout: str, rng: np.random.Generator) -> None:
    check(subject_of(name, layout, rng), backend, "float64")


# --- positions


def exchanged(by_axis: dict[str, Any]) -> dict[str, Any]:
    """The columns given for the rows."""
    return {**by_axis, "y": by_axis["x"], "x": by_axis["y"]}


def negated(place: Position) -> Position:
    """The same axis, counted the other way."""
    if isinstance(place, GridPositions):
        return replace(place, terms=tuple((-step, *rest) for step, *rest in place.terms), start=-place.start)
    assert isinstance(place, ExplicitPositions)
    return ExplicitPositions(-place.positions)


def moved(place: Position) -> Position:
    """One further."""
    if isinstance(place, GridPositions):
        return replace(place, start=place.start + 1)
    return (
        ExplicitPositions(place.positions + 1)
        if isinstance(place, ExplicitPositions)
        else ContiguousPositions(place.start + 1)
    )


def of_rows_as_long_as_columns(place: Position) -> Position:
    """The digits of a grid of 2 to a row."""
    assert isinstance(place, GridPositions)
    turn = {1: 1, 3: 2}
    return replace(place, terms=tuple((step, turn[repeat], 5 - length) for step, repeat, length in place.terms))


POSITIONS: dict[str, Callable[[str, dict[str, Position]], dict[str, Position]]] = {
    "axes exchanged": lambda side, by_axis: exchanged(by_axis),
    "axes exchanged for the keys": lambda side, by_axis: exchanged(by_axis) if side == "key_position" else by_axis,
    "y counted upwards": lambda side, by_axis: {**by_axis, "y": negated(by_axis["y"])},
    "x counted to the left": lambda side, by_axis: {**by_axis, "x": negated(by_axis["x"])},
    "keys one to the right": lambda side, by_axis: (
        {**by_axis, "x": moved(by_axis["x"])} if side == "key_position" else by_axis
    ),
}


@places_of("swin_larger_table", "shaw_on_both")
@pytest.mark.parametrize("mutation", POSITIONS)
def test_mutated_positions_are_seen(
    mutation: str, name: str, backend: str, layout: str, rng: np.random.Generator, monkeypatch: Patch
) -> None:
    """Of encodings that have rows for the mutated offsets too."""
    subject, whole = subject_of(name, layout, rng), check_positions.positions_beside
    monkeypatch.setattr(
        check_positions, "positions_beside", lambda side, *rest: POSITIONS[mutation](side, whole(side, *rest))
    )
    assert_red(subject, backend)


@pytest.mark.parametrize("backend", RUNNING, indirect=True)
@pytest.mark.parametrize("layout", ["grid", "class token"])
def test_rows_as_long_as_columns_are_seen(
    layout: str, backend: str, rng: np.random.Generator, monkeypatch: Patch
) -> None:
    subject, whole = subject_of("swin_larger_table", layout, rng), check_positions.positions_beside

    def turned(*arguments):
        return {axis: of_rows_as_long_as_columns(place) for axis, place in whole(*arguments).items()}

    monkeypatch.setattr(check_positions, "positions_beside", turned)
    assert_red(subject, backend)


# --- tokens that lead


@pytest.mark.parametrize(
    ("name", "backend"),
    [(n, b) for n in ("swin", "grid_embedding", "sam", "shaw_on_both", "key_query_on_both") for b in RUNNING],
    indirect=["backend"],
)
def test_a_prefix_token_that_gets_rows_is_seen(
    name: str, backend: str, rng: np.random.Generator, monkeypatch: Patch
) -> None:
    """It stands beside the first cell."""
    subject = subject_of(name, "class token", rng)
    monkeypatch.setattr(places, "OFF_GRID", 0)
    monkeypatch.setattr(ScoreTerms, "zeroed_outside", lambda self, first, last: self)
    monkeypatch.setattr(places, "_apart", lambda positions: positions)
    monkeypatch.setattr(places, "_joined_digits", places._joined_digits.__wrapped__)  # which keeps nothing
    assert_red(subject, backend)


@pytest.mark.parametrize("backend", RUNNING, indirect=True)
@pytest.mark.parametrize("first", [0, 1])
def test_exchanged_rows_of_a_class_token_are_seen(
    first: int, backend: str, rng: np.random.Generator, monkeypatch: Patch
) -> None:
    """Two neighbours of its three."""
    subject = subject_of("beit", "class token", rng)
    encoding = subject.parts[0].module
    whole, rows = type(encoding).terms, encoding.num_rows

    def terms(self, query, key, positions):
        order = list(range(rows + 3))
        order[rows + first], order[rows + first + 1] = order[rows + first + 1], order[rows + first]
        held = self.__dict__["_parameters"]["bias"]
        self.__dict__["_parameters"]["bias"] = held[order]
        try:
            return whole(self, query, key, positions)
        finally:
            self.__dict__["_parameters"]["bias"] = held

    monkeypatch.setattr(type(encoding), "terms", terms)
    assert_red(subject, backend)


# --- joint offsets


@places_of("swin", "beit", "grid_embedding")
@pytest.mark.parametrize("by", [-1, 1])
def test_a_radix_off_by_one_is_seen(
    by: int, name: str, backend: str, layout: str, rng: np.random.Generator, monkeypatch: Patch
) -> None:
    subject, whole = subject_of(name, layout, rng), places._sum
    monkeypatch.setattr(
        places, "_sum", lambda axes, at, strides, *rest: whole(axes, at, [strides[0] + by, *strides[1:]], *rest)
    )
    monkeypatch.setattr(places, "_joined_digits", places._joined_digits.__wrapped__)  # keeps nothing of before
    assert_red(subject, backend)


BOXES: dict[str, Callable[[torch.Tensor, tuple[int, int]], torch.Tensor]] = {
    "key - query": lambda rows, sizes: rows.flip(0),
    "the other axis slowest": lambda rows, sizes: (
        rows.unflatten(0, [2 * size - 1 for size in reversed(sizes)]).transpose(0, 1).flatten(0, 1)
    ),
    "one row later": lambda rows, sizes: rows.roll(1, 0),
}


@places_of("swin", "beit", "grid_embedding")
@pytest.mark.parametrize("mutation", BOXES)
def test_another_order_of_rows_is_seen(
    mutation: str, name: str, backend: str, layout: str, rng: np.random.Generator, monkeypatch: Patch
) -> None:
    subject, whole = subject_of(name, layout, rng), _GridTable._of_offsets
    monkeypatch.setattr(
        _GridTable, "_of_offsets", lambda self, rows, at: whole(self, BOXES[mutation](rows, self.sizes), at)
    )
    assert_red(subject, backend)


# --- the problem that a backend receives


def tables_exchanged(p: Problem) -> Problem:
    first, second = p.axes[1:]
    names = ("relative_keys", "relative_queries", "relative_values", "bias")
    tables = [{name: getattr(axis, name) for name in names} for axis in (second, first)]
    return p._replace(axes=(p.axes[0], first._replace(**tables[0]), second._replace(**tables[1])))


def clamping(axis: Axis) -> Axis:
    """Tables that hold their edge rows beyond them."""
    held = {name: OffsetTable(t.values, t.first, "clamp") for name, t in axis.tables().items()}
    return axis._replace(**held)


PROBLEMS: dict[str, Callable[[Problem], Problem]] = {
    "the last axis forgotten": lambda p: p._replace(axes=p.axes[:-1]),
    "the first of the others forgotten": lambda p: p._replace(axes=(p.axes[0], *p.axes[2:])),
    "an axis twice": lambda p: p._replace(axes=(*p.axes, p.axes[-1])),
    "tables exchanged": tables_exchanged,
    "clamped beyond a grid": lambda p: p._replace(axes=(p.axes[0], *map(clamping, p.axes[1:]))),
}


@pytest.mark.parametrize("backend", RUNNING, indirect=True)
@pytest.mark.parametrize("name", ["sam", "shaw_on_both", "key_query_on_both"])
@pytest.mark.parametrize("mutation", PROBLEMS)
def test_mutated_axes_are_seen(
    mutation: str, name: str, backend: str, rng: np.random.Generator, monkeypatch: Patch
) -> None:
    subject = subject_of(name, "class token", rng)
    run = BACKENDS[backend].run
    monkeypatch.setattr(BACKENDS[backend], "run", lambda problem: run(PROBLEMS[mutation](problem)))
    assert_red(subject, backend)
