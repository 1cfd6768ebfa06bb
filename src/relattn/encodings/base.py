"""RelativeEncoding: the contract of an encoding, and the sum of encodings."""

from __future__ import annotations

import inspect
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from operator import add
from types import MappingProxyType
from typing import Concatenate, ParamSpec, Protocol, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from relattn.checks.autocast import without_autocast
from relattn.checks.dtensors import FSDP, is_dtensor, outliving, refuse_spread
from relattn.checks.tensors import shape
from relattn.checks.terms import check_terms, more_rows
from relattn.checks.values import kind_of
from relattn.equation.terms import ScoreTerms
from relattn.errors import ShapeError, UnsupportedError
from relattn.positions.certainty import statically_true
from relattn.positions.places import Places
from relattn.positions.position import Position
from relattn.positions.positions import SEQUENCE, Positions

Query = Float[Tensor, "B Hq Lq D"]
Key = Float[Tensor, "B Hk Lk D"]
Value = Float[Tensor, "B Hk Lk Dv"]
ON_SEQUENCE = (SEQUENCE,)
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class Split(Protocol):
    """How several processes share an encoding: each has some of its heads."""

    def own(self, encoding: RelativeEncoding) -> RelativeEncoding:
        """A copy for one call. Its parameters are ordinary tensors that hold the heads of this process."""
        ...


class RelativeEncoding(nn.Module, ABC):
    """A function from offsets to rows: what a position encoding adds to the score equation.

    A new encoding writes `terms`. It also writes `prepare_keys` if it changes keys by their own position, and
    `out_of_rows` if its table may be too short for a call. Encodings add with `+`. Biases add. Relative keys over the
    caller's query add; over other relative queries they are joined along the feature axis. At most one operand may
    rewrite queries and keys.

    axes: the names of the axes whose positions it reads; only the sequence by default. With several axes an offset
        stands for one combination of their offsets (`JointPositions`).
    has_tables: whether its terms have tables. If not, positions on several axes are not joined, and only `by_axis`
        holds.
    head_axes: the axis of a parameter that counts the heads, by the parameter's name in `named_parameters`. A parameter
        that is not named is shared by the heads. All are shared where `num_heads` is None.
    heads: which of num_heads heads it has, if it makes their numbers from the number of all heads; else None.
    split: how processes share the heads; `relattn.distributed.HeadwiseParallel` sets it. None: one process has all
        heads.
    """

    axes: tuple[str, ...] = ON_SEQUENCE
    has_tables = True
    head_axes: Mapping[str, int] = MappingProxyType({})
    heads: range | None = None
    split: Split | None = None

    @property
    def rewrites_keys(self) -> bool:
        """Whether it has its own `prepare_keys`: then a sum cannot multiply relative queries with those keys."""
        return type(self).prepare_keys is not RelativeEncoding.prepare_keys

    def prepare_keys(self, key: Key, key_position: Position | Mapping[str, Position]) -> Key:
        """The keys as attention and caches hold them, once per key, when it arrives; unchanged unless overridden.

        key: [B, Hk, Lk, D].
        key_position: where the keys stand, a ContiguousPositions, GridPositions or ExplicitPositions;
            key_position.expand(key.shape[2], key.device) is the position of every key. For an encoding with other axes
            than the sequence: a mapping with every axis by name.
        """
        return key

    def on(self, axis: str) -> OnAxis:
        """The same encoding, with the same parameters, over the offsets of an axis other than the sequence.

        Raises ValueError: where it already stands on one or several axes, and where `axis` is not a name.
        """
        return OnAxis(self, axis)

    def forward(
        self,
        step: Callable[Concatenate[RelativeEncoding, Arguments], Result],
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> Result:
        """step(self, *args, **kwargs), with the encoding called as a module: hooks bring its parameters first.

        Offloading and FSDP2 hang such hooks on a module's call. `terms` and `prepare_keys` run as steps.
        """
        result = step(self, *args, **kwargs)
        return outliving(self, result) if FSDP in sys.modules else result

    @abstractmethod
    def terms(self, query: Query, key: Key, positions: Positions) -> ScoreTerms:
        """The terms of the score equation for these queries and prepared keys.

        query, key: [B, Hq, Lq, D] and [B, Hk, Lk, D], with Hk that divides Hq.
        positions: those of its axis; for several axes their joint positions, with `positions.by_axis`.

        Whatever depends on the offset is evaluated on `positions.span`, one row per offset, never on pairs.
        """

    def keep_heads(self, first: int, count: int) -> None:
        """Become the encoding of `count` heads, from `first` on. The parameters already belong to these heads.

        `Split.own` calls it on a copy. An encoding overrides it if it makes numbers per head from anything but a
        parameter, and has no `heads`.
        """
        if isinstance(self.heads, range):
            self.heads = range(first, first + count)
        elif getattr(self, "num_heads", None) is not None:
            self.num_heads = count

    def out_of_rows(self, table: str, positions: Positions) -> tuple[str, str]:
        """The name for the error where a visible offset has no row in the table called `table`, and what to do."""
        return more_rows(table, positions)

    def extra_repr(self) -> str:
        """Arguments it was made with, for `print`: those that it keeps under their names, and that print as text."""
        made_with = []
        for name, parameter in inspect.signature(type(self)).parameters.items():
            value = getattr(self, name, self)
            if not isinstance(value, (Tensor, nn.Module, list)) and type(value).__repr__ is not object.__repr__:
                required = parameter.kind is parameter.POSITIONAL_OR_KEYWORD and parameter.default is parameter.empty
                made_with.append(repr(value) if required else f"{name}={value!r}")
        return ", ".join(made_with)

    def __add__(self, other: RelativeEncoding) -> EncodingSum:
        if not isinstance(other, RelativeEncoding):
            raise TypeError(f"sum of encodings: got {kind_of(other)}; expected a RelativeEncoding")
        return EncodingSum(self, other)

    __radd__ = __add__


def prepare(encoding: RelativeEncoding, key: Key, key_places: Mapping[str, Position]) -> Key:
    """encoding.prepare_keys(key, key_position), checked: it must be a tensor of the same shape.

    key_places: where the keys stand on every axis of the call. Under autocast too it runs in the encoding's own dtypes,
    as in `lower`.
    """
    return encoding(_prepared, key, key_places) if encoding.rewrites_keys else key


def _prepared(encoding: RelativeEncoding, key: Key, key_places: Mapping[str, Position]) -> Key:
    if isinstance(encoding, EncodingSum):
        for operand in encoding.encodings:
            key = prepare(operand, key, key_places)
        return key
    missing = [axis for axis in encoding.axes if axis not in key_places]
    if missing:
        raise ValueError(f"key_position: got no axis {missing[0]!r}; expected where the keys stand on it")
    if encoding.split is not None:
        encoding = encoding.split.own(encoding)
    with without_autocast(key):
        of_sequence = encoding.axes == ON_SEQUENCE
        try:
            prepared = encoding.prepare_keys(key, key_places[SEQUENCE] if of_sequence else key_places)
        except Exception:
            _refuse_spread_parameters(encoding)
            raise
    name = f"{_name(encoding)}.prepare_keys"
    if not isinstance(prepared, Tensor):
        raise TypeError(f"{name}: returned {type(prepared).__name__}; expected a tensor")
    if prepared.shape != key.shape:
        raise ShapeError(f"{name}: returned shape {shape(prepared)} for a key of {shape(key)}; expected the same shape")
    return prepared


def lower(encoding: RelativeEncoding, query: Query, key: Key, value: Value | None, places: Places) -> ScoreTerms:
    """encoding.terms(query, key, positions), checked: it must be ScoreTerms that fit the call (`check_terms`).

    In a sum every operand is checked, once. value: None where the values are not available.
    """
    with without_autocast(query):
        return encoding(lowered, query, key, value, places)


def lowered(encoding: RelativeEncoding, query: Query, key: Key, value: Value | None, places: Places) -> ScoreTerms:
    """`lower` where autocast is off."""
    if isinstance(encoding, EncodingSum):
        parts: list[ScoreTerms] = []
        for operand in encoding.operands:
            parts.append(operand(lowered, query, key, value, places))
        return encoding.added(parts, query, places.sequence)
    if encoding.split is not None:
        encoding = encoding.split.own(encoding)
    axes, positions = encoding.axes, places.sequence
    if axes != ON_SEQUENCE:
        who = _name(encoding)
        positions = places.on(axes, who) if encoding.has_tables else places.apart(axes, who)
    try:
        terms = encoding.terms(query, key, positions)
    except Exception:
        _refuse_spread_parameters(encoding)
        raise
    if not isinstance(terms, ScoreTerms):
        raise TypeError(f"{_name(encoding)}.terms: returned {type(terms).__name__}; expected ScoreTerms")
    check_terms(terms, query, key, value, positions, encoding.out_of_rows)
    if axes == ON_SEQUENCE:
        return terms
    return _zeroed_outside(terms, positions).on(*axes)


def _refuse_spread_parameters(encoding: RelativeEncoding) -> None:
    for name, parameter in encoding.named_parameters():
        if is_dtensor(parameter):
            refuse_spread(f"{_name(encoding)} {name}", parameter)


def _name(encoding: RelativeEncoding) -> str:
    """The name of an encoding in messages: the name of its own class, on an axis too."""
    return type(encoding.encoding if isinstance(encoding, OnAxis) else encoding).__name__


def placed_terms(terms: ScoreTerms, query: Query, key: Key, value: Value | None, places: Places) -> ScoreTerms:
    """The caller's own terms, checked in the same way on every axis."""
    check_terms(terms, query, key, value, places.sequence)
    if not terms.axes:
        return terms
    axes = {}
    for names, part in terms.axes.items():
        positions = places.on(names, "encoding")
        check_terms(part, query, key, value, positions)
        axes[names] = _zeroed_outside(part, positions)
    return replace(terms, axes=axes)


def _zeroed_outside(terms: ScoreTerms, positions: Positions) -> ScoreTerms:
    """The terms. They add nothing to pairs with a token before a grid, unless they have rows for these tokens."""
    if terms.has_prefix_rows:
        return replace(terms, has_prefix_rows=False)  # they have their rows now, and can be added to any others
    if positions.prefix_tokens == (0, 0):
        return terms
    first, last = positions.visible
    assert isinstance(first, int) and isinstance(last, int)
    return terms.zeroed_outside(first, last)


def _of_no_pair(terms: ScoreTerms) -> ScoreTerms:
    """The terms of a call without any pair. Tables that refuse may share no offset, so all get offset 0."""
    refusing = {name: table for name, table in terms.tables.items() if table.beyond == "error"}
    changed = {name: replace(t, values=t.values[:, :1], first=0) for name, t in refusing.items()}
    return replace(terms, axes={axes: _of_no_pair(part) for axes, part in terms.axes.items()}, **changed)


def _added(parts: Sequence[ScoreTerms], query: Query) -> ScoreTerms:
    """The terms of one axis as one. Terms over the caller's query are added first, then the others are joined."""
    own, others = [], []
    for part in parts:
        (own if part.relative_query is None else others).append(part)
    if own and others:
        combined = reduce(add, own)
        own = [combined if combined.relative_keys is None else replace(combined, relative_query=query)]
    return reduce(add, own + others)


class OnAxis(RelativeEncoding):
    """encoding.on(axis): the encoding over the offsets of that axis. `encoding` holds its parameters.

    Raises TypeError: for anything but a RelativeEncoding; ValueError: where it already stands on an axis other than the
    sequence, and where `axis` is not the name of another axis.
    """

    def __init__(self, encoding: RelativeEncoding, axis: str) -> None:
        super().__init__()
        if not isinstance(encoding, RelativeEncoding):
            raise TypeError(f"encoding: got {type(encoding).__name__}; expected a RelativeEncoding")
        name = _name(encoding)
        if encoding.axes != ON_SEQUENCE:
            raise ValueError(
                f"{name}.on: got one that stands on {', '.join(map(repr, encoding.axes))}; expected one of the "
                "sequence; make another for another axis"
            )
        if not isinstance(axis, str) or not axis or axis == SEQUENCE:
            raise ValueError(f"{name}.on: got {axis!r}; expected the name of an axis other than 'sequence'")
        self.encoding = encoding
        self.axes = (axis,)

    @property
    def rewrites_keys(self) -> bool:
        """Whether the encoding does."""
        return self.encoding.rewrites_keys

    def prepare_keys(self, key: Key, key_position: Position | Mapping[str, Position]) -> Key:
        """The keys as the encoding prepares them, by their positions on the axis."""
        (axis,) = self.axes
        assert isinstance(key_position, Mapping)
        return self.encoding(lambda encoding: encoding.prepare_keys(key, key_position[axis]))

    def keep_heads(self, first: int, count: int) -> None:
        """The encoding keeps them."""
        self.encoding.keep_heads(first, count)

    def terms(self, query: Query, key: Key, positions: Positions) -> ScoreTerms:
        """The encoding's terms, for the positions on the axis."""
        return self.encoding(lambda encoding: encoding.terms(query, key, positions))

    def out_of_rows(self, table: str, positions: Positions) -> tuple[str, str]:
        """As the encoding names it."""
        return self.encoding.out_of_rows(table, positions)

    def extra_repr(self) -> str:
        """The axis, for `print`."""
        return f"axis={self.axes[0]!r}"


class EncodingSum(RelativeEncoding):
    """a + b: the terms of both, in one score equation.

    Raises UnsupportedError: where two operands rewrite queries or keys, or a rotation stands beside relative queries,
    because no paper defines what that means.
    """

    def __init__(self, *encodings: RelativeEncoding) -> None:
        super().__init__()
        operands: list[RelativeEncoding] = []
        for encoding in encodings:
            operands.extend(encoding.encodings if isinstance(encoding, EncodingSum) else [encoding])
        if [operand.rewrites_keys for operand in operands].count(True) > 1:
            raise UnsupportedError(
                "sum of encodings: two operands rotate the queries and keys; no paper defines that, keep one of them"
            )
        self.operands = nn.ModuleList(operands)

    @property
    def axes(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Every axis that an operand stands on, each once."""
        return tuple(dict.fromkeys(axis for operand in self.encodings for axis in operand.axes))

    def on(self, axis: str) -> EncodingSum:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The sum. Operands on the sequence move to `axis`; the others stay where they are."""
        return EncodingSum(*[part.on(axis) if part.axes == ON_SEQUENCE else part for part in self.encodings])

    def prepare_keys(self, key: Key, key_position: Position | Mapping[str, Position]) -> Key:
        """The keys after the one operand that changes them."""
        return prepare(self, key, key_position if isinstance(key_position, Mapping) else {SEQUENCE: key_position})

    def terms(self, query: Query, key: Key, positions: Positions) -> ScoreTerms:
        """The sum of every operand's terms; each sees the query as the caller gave it."""
        others = dict(getattr(positions, "by_axis", {}))
        return lower(self, query, key, None, Places(others.pop(SEQUENCE, positions), others))

    def added(self, parts: Sequence[ScoreTerms], query: Query, positions: Positions) -> ScoreTerms:
        """The operands' terms as one. Terms over the caller's query are added first, then the others joined to them."""
        holds = statically_true if torch.compiler.is_compiling() else bool
        if holds(positions.query_length * positions.key_length == 0):
            parts = [_of_no_pair(part) for part in parts]
        on_sequence: list[ScoreTerms] = []
        others: list[tuple[str, ...]] = []
        for part in parts:
            on_sequence.append(part.by_axes()[ON_SEQUENCE] if part.axes else part)
            others += part.axes
        combined = _added(on_sequence, query)
        for axes in dict.fromkeys(others):
            combined = combined + _added([part.axes[axes] for part in parts if axes in part.axes], query).on(*axes)
        for terms in (combined, *combined.axes.values()):
            if terms.relative_queries is not None and self.rewrites_keys:
                raise UnsupportedError(
                    "sum of encodings: a rotation and relative queries; the relative queries would meet rotated keys, "
                    "which no paper defines"
                )
        return combined

    @property
    def rewrites_keys(self) -> bool:
        """Whether an operand has its own `prepare_keys`."""
        for operand in self.operands:  # noqa: SIM110, a generator would be a function more in every token
            if operand.rewrites_keys:
                return True
        return False

    @property
    def encodings(self) -> list[RelativeEncoding]:
        """The operands, sums among them taken apart, in order."""
        return list(self.operands)  # pyright: ignore[reportReturnType]
