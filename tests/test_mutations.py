"""The contract's comparison can fail: break any one thing in the equation and it goes red.

Every mutation here is one mistake, made on purpose where the library computes: in the problem that a backend receives,
in the functions that turn offsets into rows and limits, or in an encoding. The comparison is that of the contract suite
and must refuse each of them; without a mutation it must accept. A new backend is mutated too, by its line in BACKENDS.
In native, which computes in float32, `tests.native.test_mutations` makes the mistakes of the first kind.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from relattn import (
    DisentangledEmbedding,
    KerpleBias,
    OffsetTable,
    RotaryEmbedding,
    ScoreTerms,
    TransformerXLEmbedding,
)
from relattn.backends.select import BACKENDS
from relattn.equation.problem import TABLES, Problem
from relattn.positions.contiguous import ContiguousPositions
from relattn.positions.explicit import ExplicitPositions
from relattn.positions.position import Position
from relattn.positions.positions import Positions, Span
from tests.contract.blocks import TESTED_BACKENDS
from tests.contract.cases import CASES, expected_answer
from tests.contract.check import assert_red, check
from tests.contract.settings import Setting
from tests.contract.subject import Subject, make_subject

pytestmark = pytest.mark.one_in(6)

pytest_plugins = ["tests.contract.fresh"]

POSITIONS = {
    "starts": {"query_position": 2, "key_position": 0},
    "explicit": {
        "query_position": np.array([3, 1, 6, 4]),
        "key_position": np.array([[0, 2, 3, 5, 4], [1, 0, 4, 2, 6]]),
    },
}


def setting_of(layout: str, seed: int = 0) -> Setting:
    """Causality, a window and a key mask, each of which hides some pair and leaves every query some key."""
    return Setting(
        batch=2,
        num_heads=4,
        num_kv_heads=2,
        query_length=4,
        key_length=5,
        head_dim=4,
        value_dim=3,
        is_causal=True,
        window=(4, None),
        key_mask=np.array([[True, True, False, True, True], [True, True, True, False, True]]),
        seed=seed,
        **POSITIONS[layout],
    )


def runs(name: str, *layouts: str) -> list[tuple[str, str, str]]:
    """(case, backend, layout) wherever the backend runs the case."""
    places = [(name, backend, layout) for backend in TESTED_BACKENDS for layout in layouts or POSITIONS]
    return [place for place in places if expected_answer(place[1], CASES[name], setting_of(place[2]), True) == "runs"]


def subject_of(name: str, layout: str, rng: np.random.Generator) -> Subject:
    """The case on fresh numbers."""
    return make_subject(CASES[name], setting_of(layout, seed=int(rng.integers(2**32))))


MUTATED = (
    "terms_all",
    "txl",
    "t5",
    "disentangled",
    "disentangled_buckets",
    "alibi_4_heads",
    "rope",
    "kerple",
    "kerple_power",
    "sandwich",
    "function",
)


@pytest.mark.parametrize(
    ("name", "backend", "layout"), [place for name in MUTATED for place in runs(name)], indirect=["backend"]
)
def test_control_is_green(name: str, backend: str, layout: str, rng: np.random.Generator) -> None:
    check(subject_of(name, layout, rng), backend, "float64")


# --- the problem that a backend receives


def mutate_problem(monkeypatch: pytest.MonkeyPatch, backend: str, mutation: Callable[[Problem], Problem]) -> None:
    """The backend computes another problem than it was given."""
    run = BACKENDS[backend].run
    monkeypatch.setattr(BACKENDS[backend], "run", lambda problem: run(mutation(problem)))


def backwards(table: OffsetTable) -> OffsetTable:
    """T[-d] in the place of T[d]."""
    assert isinstance(table.first, int)
    return replace(table, values=table.values.flip(1), first=1 - table.first - table.num_rows)


def later(table: OffsetTable) -> OffsetTable:
    """T[d - 1] in the place of T[d]."""
    return replace(table, first=table.first + 1)


TABLE_MUTATIONS: dict[str, Callable[[OffsetTable], OffsetTable | None]] = {
    "sign flipped": lambda table: replace(table, values=-table.values),
    "offset reversed": backwards,
    "one diagonal later": later,
    "one diagonal earlier": lambda table: replace(table, first=table.first - 1),
    "heads rotated": lambda table: replace(table, values=table.values.roll(1, dims=0)),
    "clamp for zero, zero for clamp": lambda t: replace(t, beyond={"clamp": "zero", "zero": "clamp"}[t.beyond]),
}


@pytest.mark.pairs
@pytest.mark.parametrize(("name", "backend", "layout"), runs("terms_all"), indirect=["backend"])
@pytest.mark.parametrize("mutation", TABLE_MUTATIONS)
@pytest.mark.parametrize("table", TABLES)
def test_a_mutated_table_is_seen(
    table: str, mutation: str, name: str, backend: str, layout: str, rng: np.random.Generator, monkeypatch
) -> None:
    mutate = TABLE_MUTATIONS[mutation]
    mutate_problem(monkeypatch, backend, lambda p: retabled(p, **{table: mutate(p.sequence().tables()[table])}))
    assert_red(subject_of(name, layout, rng), backend)


def retabled(p: Problem, **fields: Any) -> Problem:
    """The sequence with other terms."""
    return p._replace(axes=(p.sequence()._replace(**fields),))


def without(name: str) -> Callable[[Problem], Problem]:
    """The equation less one table."""
    absent: dict[str, Any] = {name: None}
    return lambda p: retabled(p, **absent, **({"relative_query": None} if name == "relative_keys" else {}))


def moved(position: Position, change: Callable[[Any], Any]) -> Position:
    """A run from another start, or other positions."""
    return (
        ContiguousPositions(change(position.start))
        if isinstance(position, ContiguousPositions)
        else ExplicitPositions(change(position.positions))
    )


def standing(p: Problem, query: Callable[[Any], Any], key: Callable[[Any], Any]) -> Problem:
    """Queries and keys stand elsewhere, for tables and mask alike."""
    before = p.sequence().positions
    positions = replace(before, query=moved(before.query, query), key=moved(before.key, key))
    return retabled(p, positions=positions)._replace(mask=replace(p.mask, positions=positions))


def times(table: OffsetTable, factor: float) -> OffsetTable:
    """factor * T[d]."""
    return replace(table, values=table.values * factor)


def remasked(p: Problem, **fields: Any) -> Problem:
    """Another mask."""
    return p._replace(mask=replace(p.mask, **fields))


PROBLEM_MUTATIONS: dict[str, Callable[[Problem], Problem]] = {
    **{f"no {name}": without(name) for name in TABLES},
    "q . k with its sign flipped": lambda p: p._replace(query=-p.query),
    "r . RK with its sign flipped": lambda p: retabled(p, relative_query=-p.sequence().relative_query),
    "values with their sign flipped": lambda p: p._replace(value=-p.value),
    "no scale": lambda p: p._replace(scale=1.0),
    "r . RK not scaled": lambda p: retabled(p, relative_query=p.sequence().relative_query / p.scale),
    "RQ . k not scaled": lambda p: retabled(p, relative_queries=times(p.sequence().relative_queries, 1.0 / p.scale)),
    "bias scaled": lambda p: retabled(p, bias=times(p.sequence().bias, p.scale)),
    "key mask inverted": lambda p: remasked(p, key_mask=~p.mask.key_mask),
    "no key mask": lambda p: remasked(p, key_mask=None),
    "queries one position late": lambda p: standing(p, lambda q: q + 1, lambda k: k),
    "keys one position late": lambda p: standing(p, lambda q: q, lambda k: k + 1),
    "positions negated": lambda p: standing(p, lambda q: -q, lambda k: -k),
    "key heads interleaved over the query heads": lambda p: p._replace(
        key=p.key.repeat(1, p.num_groups(), 1, 1), value=p.value.repeat(1, p.num_groups(), 1, 1)
    ),
    "batch rotated": lambda p: p._replace(key=p.key.roll(1, dims=0)),
}


@pytest.mark.parametrize(("name", "backend", "layout"), runs("terms_all"), indirect=["backend"])
@pytest.mark.parametrize("mutation", PROBLEM_MUTATIONS)
def test_a_mutated_problem_is_seen(
    mutation: str, name: str, backend: str, layout: str, rng: np.random.Generator, monkeypatch
) -> None:
    mutate_problem(monkeypatch, backend, PROBLEM_MUTATIONS[mutation])
    assert_red(subject_of(name, layout, rng), backend)


GRADIENTS: dict[str, Callable[[Tensor], Tensor]] = {
    "lost": lambda tensor: tensor.detach(),
    "of the wrong sign": lambda tensor: 2.0 * tensor.detach() - tensor,
}


@pytest.mark.pairs
@pytest.mark.parametrize(("name", "backend", "layout"), runs("terms_all", "starts"), indirect=["backend"])
@pytest.mark.parametrize("mutation", GRADIENTS)
@pytest.mark.parametrize("operand", ["query", "key", "value", "relative_query", *TABLES])
def test_a_mutated_gradient_is_seen(
    operand: str, mutation: str, name: str, backend: str, layout: str, rng: np.random.Generator, monkeypatch
) -> None:
    """The answers stay right: the named gradient alone must turn the comparison red."""

    def mutated(p: Problem) -> Problem:
        of_axis = operand in ("relative_query", *TABLES)
        old = getattr(p.sequence() if of_axis else p, operand)
        new = GRADIENTS[mutation](old.values if operand in TABLES else old)
        changed: dict[str, Any] = {operand: replace(old, values=new) if operand in TABLES else new}
        return retabled(p, **changed) if of_axis else p._replace(**changed)

    mutate_problem(monkeypatch, backend, mutated)
    gradient = "terms.relative_query" if operand == "relative_query" else operand
    small = replace(setting_of(layout, seed=int(rng.integers(2**32))), batch=1, key_mask=None)
    assert_red(make_subject(CASES[name], small), backend, gradient=gradient)


# --- offsets, rows and limits at their source

MAPS: dict[str, Callable[[Any], Any]] = {
    "reversed": lambda offset: -offset,
    "one more": lambda offset: offset + 1,
    "one less": lambda offset: offset - 1,
}


def mutate_rows(monkeypatch: pytest.MonkeyPatch, change: Callable[[Any], Any]) -> None:
    """OffsetTable answers for another offset, one by one and in runs."""
    at = OffsetTable.at
    monkeypatch.setattr(OffsetTable, "at", lambda self, offsets: at(self, change(offsets)))
    monkeypatch.setattr(OffsetTable, "rows", lambda self, first, n: at(self, change(torch.arange(n) + first)))


def mutate_offsets(monkeypatch: pytest.MonkeyPatch, change: Callable[[Any], Any]) -> None:
    """Every pair's offset is another."""
    offsets = Positions.offsets
    monkeypatch.setattr(Positions, "offsets", lambda self: change(offsets(self)))


def mutate_diagonal(monkeypatch: pytest.MonkeyPatch, change: Callable[[Any], Any]) -> None:
    """The matrix of scores, or a block of it, starts at another offset."""
    finish = Positions.__post_init__

    def changed(self: Positions) -> None:
        finish(self)
        if self.known_origin is not None:
            for name in ("origin", "known_origin"):
                object.__setattr__(self, name, change(self.known_origin))

    monkeypatch.setattr(Positions, "__post_init__", changed)


# By what each layout goes through: starts through rows and the origin, explicit positions through offsets; the
# reference writes every pair's offset out in either.
SOURCES = [
    (mutate_rows, "dense", "starts"),
    (mutate_rows, "reference", "starts"),
    (mutate_rows, "reference", "explicit"),
    (mutate_offsets, "dense", "explicit"),
    (mutate_offsets, "blocks", "explicit"),
    (mutate_offsets, "reference", "starts"),
    (mutate_offsets, "reference", "explicit"),
    (mutate_diagonal, "dense", "starts"),
    (mutate_diagonal, "blocks", "starts"),
    (mutate_diagonal, "reference", "starts"),
]


@pytest.mark.parametrize("change", MAPS)
@pytest.mark.parametrize(("mutate", "backend", "layout"), SOURCES, indirect=["backend"])
def test_a_mutated_offset_is_seen(
    mutate: Callable, backend: str, layout: str, change: str, rng: np.random.Generator, monkeypatch
) -> None:
    mutate(monkeypatch, MAPS[change])
    assert_red(subject_of("terms_all", layout, rng), backend)


@pytest.mark.parametrize("shift", [1, -1])
@pytest.mark.parametrize("function", ["strided_view", "strided_strip"])
def test_a_mutated_stride_is_seen(function: str, shift: int, rng: np.random.Generator, monkeypatch) -> None:
    """The dense backend's way from strips to scores, and from weights to strips."""
    from relattn.backends.dense import arrangement

    whole = getattr(arrangement, function)
    if function == "strided_view":
        monkeypatch.setattr(arrangement, function, lambda strip, n: whole(strip.roll(shift, dims=-1), n))
    else:
        monkeypatch.setattr(arrangement, function, lambda weights, n: whole(weights, n).roll(shift, dims=-1))
    assert_red(subject_of("terms_all", "starts", rng), "dense")


LIMITS: dict[str, Callable[[int, int], tuple[int | None, int | None]]] = {
    "causality flipped": lambda lowest, highest: (-highest, -lowest),
    "no causality": lambda lowest, highest: (lowest, None),
    "a query sees the next key": lambda lowest, highest: (lowest, highest + 1),
    "a query does not see itself": lambda lowest, highest: (lowest, highest - 1),
    "no window": lambda lowest, highest: (None, highest),
    "window too long": lambda lowest, highest: (lowest - 1, highest),
    "window too short": lambda lowest, highest: (lowest + 1, highest),
}


@pytest.mark.parametrize(("name", "backend", "layout"), runs("terms_all"), indirect=["backend"])
@pytest.mark.parametrize("mutation", LIMITS)
def test_mutated_limits_are_seen(
    mutation: str, name: str, backend: str, layout: str, rng: np.random.Generator, monkeypatch
) -> None:
    from relattn import call

    limits = call.limits
    monkeypatch.setattr(call, "limits", lambda *arguments: LIMITS[mutation](*limits(*arguments)))
    assert_red(subject_of(name, layout, rng), backend)


# --- the encodings

Terms = Callable[[ScoreTerms, Tensor], ScoreTerms]
TXL_TERMS: dict[str, Terms] = {
    "u with its sign flipped": lambda terms, query: replace(terms, query=2.0 * query - terms.query),
    "v with its sign flipped": lambda terms, query: replace(terms, relative_query=2.0 * query - terms.relative_query),
    "no u": lambda terms, query: replace(terms, query=None),
    "no v": lambda terms, query: replace(terms, relative_query=query),
    "u and v exchanged": lambda terms, query: replace(terms, query=terms.relative_query, relative_query=terms.query),
    "W R with its sign flipped": lambda terms, query: replace(
        terms, relative_keys=replace(terms.relative_keys, values=-terms.relative_keys.values)
    ),
}


@pytest.mark.parametrize(("name", "backend", "layout"), runs("txl"), indirect=["backend"])
@pytest.mark.parametrize("mutation", TXL_TERMS)
def test_mutated_terms_of_transformer_xl_are_seen(
    mutation: str, name: str, backend: str, layout: str, rng: np.random.Generator, monkeypatch
) -> None:
    terms = TransformerXLEmbedding.terms
    monkeypatch.setattr(
        TransformerXLEmbedding,
        "terms",
        lambda self, q, k, positions: TXL_TERMS[mutation](terms(self, q, k, positions), q),
    )
    assert_red(subject_of(name, layout, rng), backend)


DEBERTA_TERMS: dict[str, Callable[[ScoreTerms], ScoreTerms]] = {
    "W_k and W_q exchanged": lambda terms: replace(
        terms, relative_keys=terms.relative_queries, relative_queries=terms.relative_keys
    ),
    "no c2p": lambda terms: replace(terms, relative_keys=None),
    "no p2c": lambda terms: replace(terms, relative_queries=None),
    "delta(j, i) in p2c": lambda terms: replace(terms, relative_queries=backwards(terms.relative_queries)),
}


@pytest.mark.parametrize(
    ("name", "backend", "layout"), [*runs("disentangled"), *runs("disentangled_buckets")], indirect=["backend"]
)
@pytest.mark.parametrize("mutation", DEBERTA_TERMS)
def test_mutated_terms_of_deberta_are_seen(
    mutation: str, name: str, backend: str, layout: str, rng: np.random.Generator, monkeypatch
) -> None:
    terms = DisentangledEmbedding.terms
    monkeypatch.setattr(
        DisentangledEmbedding, "terms", lambda self, *arguments: DEBERTA_TERMS[mutation](terms(self, *arguments))
    )
    assert_red(subject_of(name, layout, rng), backend)


def keep_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What depends on no parameter is made anew in every call: neither are right rows kept, nor do wrong ones stay."""
    from relattn.encodings import constants

    monkeypatch.setattr(constants, "is_intercepted", lambda tensors: True)


def mutate_buckets(monkeypatch: pytest.MonkeyPatch, change: Callable[[Any], Any]) -> None:
    """T5's buckets are those of another offset."""
    from relattn.encodings import t5

    whole = t5.buckets
    monkeypatch.setattr(t5, "buckets", lambda offsets, *others: whole(change(offsets), *others))


def mutate_distances(monkeypatch: pytest.MonkeyPatch, change: Callable[[Any], Any]) -> None:
    """Transformer-XL's sinusoids, and DeBERTa's rows, are those of another i - j."""
    whole = Span.offsets
    monkeypatch.setattr(Span, "offsets", lambda self, device: -change(-whole(self, device)))


def mutate_slopes(monkeypatch: pytest.MonkeyPatch, change: Callable[[Any], Any]) -> None:
    """ALiBi's slopes are others."""
    from relattn.encodings import alibi

    whole = alibi._rows
    monkeypatch.setattr(alibi, "_rows", lambda slopes, *others: whole(change(slopes), *others))


def mutate_span(monkeypatch: pytest.MonkeyPatch, change: Callable[[Any], Any]) -> None:
    """A function of the offset is evaluated on others."""
    whole = Span.offsets
    monkeypatch.setattr(Span, "offsets", lambda self, device: change(whole(self, device)))


def mutate_key_positions(monkeypatch: pytest.MonkeyPatch, change: Callable[[Any], Any]) -> None:
    """RoPE turns the keys by another position than the queries."""
    whole = RotaryEmbedding.prepare_keys
    monkeypatch.setattr(
        RotaryEmbedding, "prepare_keys", lambda self, key, position: whole(self, key, moved(position, change))
    )


ENCODING_MUTATIONS = {
    "txl": mutate_distances,
    "t5": mutate_buckets,
    "disentangled": mutate_distances,
    "disentangled_buckets": mutate_distances,
    "alibi_4_heads": mutate_slopes,
    "rope": mutate_key_positions,
    "kerple": mutate_span,
    "kerple_power": mutate_span,
    "sandwich": mutate_span,
    "function": mutate_span,
}
EVEN = ("kerple", "kerple_power", "sandwich")
"""Functions of the distance, which is the same reversed."""
# Keys that start at 0 start there reversed too.
MUTABLE = [
    (*place, change)
    for name in ENCODING_MUTATIONS
    for place in runs(name)
    for change in MAPS
    if (name, place[2], change) != ("rope", "starts", "reversed") and not (name in EVEN and change == "reversed")
]


@pytest.mark.parametrize(("name", "backend", "layout", "change"), MUTABLE, indirect=["backend"])
def test_a_mutated_encoding_is_seen(
    name: str, backend: str, layout: str, change: str, rng: np.random.Generator, monkeypatch
) -> None:
    keep_nothing(monkeypatch)
    ENCODING_MUTATIONS[name](monkeypatch, MAPS[change])
    assert_red(subject_of(name, layout, rng), backend)


KERPLE_TERMS: dict[str, Callable[[KerpleBias], None]] = {
    "r1 and r2 exchanged": lambda encoding: encoding.__dict__["_parameters"].update(r1=encoding.r2, r2=encoding.r1),
    "the other kind": lambda encoding: setattr(encoding, "kind", {"log": "power", "power": "log"}[encoding.kind]),
}


@pytest.mark.parametrize(("name", "backend", "layout"), [*runs("kerple"), *runs("kerple_power")], indirect=["backend"])
@pytest.mark.parametrize("mutation", KERPLE_TERMS)
def test_mutated_terms_of_kerple_are_seen(
    mutation: str, name: str, backend: str, layout: str, rng: np.random.Generator
) -> None:
    subject = subject_of(name, layout, rng)
    KERPLE_TERMS[mutation](subject.parts[0].module)
    assert_red(subject, backend)
