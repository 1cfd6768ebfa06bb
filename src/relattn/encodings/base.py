"""RelativeEncoding: the contract of an encoding, and the sum of encodings."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from operator import add

from jaxtyping import Float
from torch import Tensor, nn

from relattn.autocast import without_autocast
from relattn.errors import ShapeError, UnsupportedError
from relattn.score.certainty import certainly
from relattn.score.check_terms import check_terms, more_rows
from relattn.score.checks import shape
from relattn.score.position import Position
from relattn.score.positions import Positions
from relattn.score.problem import TABLES
from relattn.score.terms import ScoreTerms


class RelativeEncoding(nn.Module, ABC):
    """A function from offsets to rows: what a position encoding adds to the score equation.

    A new encoding writes `terms`, `prepare_keys` where it changes keys by their own position, and `out_of_rows` where
    its table may be too short for a call. Encodings add with `+`: biases add, relative keys over the caller's query
    add, over other relative queries they are joined along the feature axis; one operand at most may rewrite queries and
    keys.
    """

    @property
    def rewrites_keys(self) -> bool:
        """Whether `prepare_keys` is its own: then no relative queries can meet those keys in a sum."""
        return type(self).prepare_keys is not RelativeEncoding.prepare_keys

    def prepare_keys(self, key: Float[Tensor, "B Hk Lk D"], key_position: Position) -> Float[Tensor, "B Hk Lk D"]:
        """The keys as attention and caches hold them, once per key, when it arrives; unchanged unless overridden.

        key_position: where the keys stand, a Run or Listed; key_position.expand(key.shape[2], key.device) is the
            position of every key.
        """
        return key

    @abstractmethod
    def terms(
        self, query: Float[Tensor, "B Hq Lq D"], key: Float[Tensor, "B Hk Lk D"], positions: Positions
    ) -> ScoreTerms:
        """The terms of the score equation for these queries and prepared keys.

        Whatever depends on the offset is evaluated on `positions.span`, one row an offset, never on pairs.
        """

    def out_of_rows(self, table: str, positions: Positions) -> tuple[str, str]:
        """What the error names where a visible offset has no row in the table called `table`, and the way out."""
        return more_rows(table, positions)

    def __add__(self, other: RelativeEncoding) -> EncodingSum:
        if not isinstance(other, RelativeEncoding):
            return NotImplemented
        return EncodingSum(self, other)


def prepare(
    encoding: RelativeEncoding, key: Float[Tensor, "B Hk Lk D"], key_position: Position
) -> Float[Tensor, "B Hk Lk D"]:
    """encoding.prepare_keys(key, key_position), held to its contract: a tensor of the same shape.

    In the encoding's own dtypes under autocast too, as `lower`.
    """
    if not encoding.rewrites_keys:
        return key
    with without_autocast(key):
        prepared = encoding.prepare_keys(key, key_position)
    name = f"{type(encoding).__name__}.prepare_keys"
    if not isinstance(prepared, Tensor):
        raise TypeError(f"{name}: returned {type(prepared).__name__}; expected a tensor")
    if prepared.shape != key.shape:
        raise ShapeError(f"{name}: returned shape {shape(prepared)} for a key of {shape(key)}; expected the same shape")
    return prepared


def lower(
    encoding: RelativeEncoding,
    query: Float[Tensor, "B Hq Lq D"],
    key: Float[Tensor, "B Hk Lk D"],
    value: Float[Tensor, "B Hk Lk Dv"] | None,
    positions: Positions,
) -> ScoreTerms:
    """encoding.terms(query, key, positions), held to its contract: ScoreTerms that fit the call (`check_terms`).

    Of a sum every operand is held to it, once. value: None where the values are not at hand.
    """
    with without_autocast(query):
        if isinstance(encoding, EncodingSum):
            parts = [lower(operand, query, key, value, positions) for operand in encoding.encodings]
            return encoding.added(parts, query, positions)
        terms = encoding.terms(query, key, positions)
    if not isinstance(terms, ScoreTerms):
        raise TypeError(f"{type(encoding).__name__}.terms: returned {type(terms).__name__}; expected ScoreTerms")
    check_terms(terms, query, key, value, positions, encoding.out_of_rows)
    return terms


def _of_no_pair(terms: ScoreTerms) -> ScoreTerms:
    """The terms of a call without any pair: tables that refuse, which may share no offset then, meet at offset 0."""
    tables = {name: getattr(terms, name) for name in TABLES}
    refusing = {name: table for name, table in tables.items() if table is not None and table.beyond == "refuse"}
    return replace(terms, **{name: replace(t, values=t.values[:, :1], first=0) for name, t in refusing.items()})


class EncodingSum(RelativeEncoding):
    """a + b: the terms of both, in one score equation.

    Raises UnsupportedError: where two operands rewrite queries or keys, or a rotation meets relative queries: no paper
    defines what that means.
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

    def prepare_keys(self, key: Float[Tensor, "B Hk Lk D"], key_position: Position) -> Float[Tensor, "B Hk Lk D"]:
        """The keys after the one operand that changes them."""
        for operand in self.encodings:
            key = prepare(operand, key, key_position)
        return key

    def terms(
        self, query: Float[Tensor, "B Hq Lq D"], key: Float[Tensor, "B Hk Lk D"], positions: Positions
    ) -> ScoreTerms:
        """The sum of every operand's terms; each sees the query as the caller gave it."""
        return lower(self, query, key, None, positions)

    def added(self, parts: Sequence[ScoreTerms], query: Float[Tensor, "B Hq Lq D"], positions: Positions) -> ScoreTerms:
        """The operands' terms in one: those over the caller's query add first, then the others are joined to them."""
        if certainly(positions.query_length == 0) or certainly(positions.key_length == 0):
            parts = [_of_no_pair(part) for part in parts]
        others = [part for part in parts if part.relative_query is not None]
        combined = reduce(add, [part for part in parts if part.relative_query is None], ScoreTerms())
        if others and combined.relative_keys is not None:
            combined = replace(combined, relative_query=query)
        combined = reduce(add, others, combined)
        if self.rewrites_keys and combined.relative_queries is not None:
            raise UnsupportedError(
                "sum of encodings: a rotation and relative queries; the relative queries would meet rotated keys, "
                "which no paper defines"
            )
        return combined

    @property
    def rewrites_keys(self) -> bool:
        """Whether an operand does."""
        return any(operand.rewrites_keys for operand in self.encodings)

    @property
    def encodings(self) -> list[RelativeEncoding]:
        """The operands, sums among them taken apart, in order."""
        return list(self.operands)  # pyright: ignore[reportReturnType]
