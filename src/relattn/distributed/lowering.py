"""Lowering: a call on a rank's part as problems, one for each piece of its queries, over the keys of all ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from relattn.call import Options, request
from relattn.checks.positions import places_beside
from relattn.checks.tensors import check_attn_mask
from relattn.distributed import traffic
from relattn.distributed.group import Group
from relattn.distributed.parts import Layout, Piece, ordered, pieces
from relattn.distributed.positions import SplitPositions
from relattn.encodings.base import RelativeEncoding, prepare
from relattn.equation.problem import Part, Problem
from relattn.equation.terms import ScoreTerms
from relattn.errors import ShapeError
from relattn.positions.contiguous import ContiguousPositions
from relattn.positions.position import Position
from relattn.positions.positions import SEQUENCE, Positions


@dataclass(frozen=True)
class Call:
    """A call on this rank's part, checked, with one batch axis.

    query [B, Hq, n, D], key [B, Hk, m, D], value [B, Hk, m, Dv]: the parts. batch: the caller's axes before the heads.
    query_positions, key_positions: where they stand. within: the limits of the offset. key_mask [B, m], segments
        ([B, n], [B, m]) and key_bias [B or 1, Hq or 1, m]: those of the part. options: softcap, dropout_p and
        scale, which are the same for all pieces. seed: the seed of dropout.
    """

    group: Group
    layout: Layout
    query: Float[Tensor, "B Hq n D"]
    key: Float[Tensor, "B Hk m D"]
    value: Float[Tensor, "B Hk m Dv"]
    batch: tuple[int, ...]
    query_positions: SplitPositions
    key_positions: SplitPositions
    within: tuple[int | None, int | None]
    encoding: RelativeEncoding | ScoreTerms | None
    attn_mask: Tensor | None
    key_mask: Bool[Tensor, "B m"] | None
    segments: tuple[Int[Tensor, "B n"], Int[Tensor, "B m"]] | None
    key_bias: Float[Tensor, "#B #Hq m"] | None
    options: Options
    seed: int | None = None

    def own(self, length: int) -> tuple[Piece, ...]:
        """The pieces of this rank, for a part of that length."""
        return pieces(self.group.rank, self.group.world, length, self.layout)

    def pieces(self, part: Float[Tensor, "B H n D"]) -> Iterator[tuple[Piece, Tensor]]:
        """The pieces of this rank's part: one operation, whose gradient is one tensor."""
        own = self.own(part.shape[2])
        return zip(own, part.split([piece.length for piece in own], dim=2), strict=True)

    def whole(self, part: Tensor, dim: int = -1) -> Tensor:
        """The parts of a tensor from all ranks, in the order of the sequence."""
        return ordered(self.group.gathered(part), dim, self.layout)

    def keys_of_all(self) -> tuple[Tensor, Tensor]:
        """Zeros in the shape of all keys and values, which take no memory."""
        key, value = (
            one.new_zeros(1).expand(*one.shape[:2], one.shape[2] * self.group.world, one.shape[3])
            for one in (self.key, self.value)
        )
        return key, value

    def hides_by_data(self) -> bool:
        """Whether masks hide keys by numbers that one rank knows only of its own part."""
        return self.key_mask is not None or self.segments is not None

    def limits_of_elements(self) -> tuple[int | None, int | None]:
        """The limits of key - query, counted in elements. None for explicit positions, too: they are not read."""
        query, key = self.query_positions.by_axis[SEQUENCE], self.key_positions.by_axis[SEQUENCE]
        if not (isinstance(query, ContiguousPositions) and isinstance(key, ContiguousPositions)):
            return None, None
        assert isinstance(query.start, int) and isinstance(key.start, int)
        lowest, highest = (None if limit is None else limit - (key.start - query.start) for limit in self.within)
        return lowest, highest

    def hops(self) -> int:
        """How many ranks before it have keys that a rank may see by these limits."""
        lengths = self.query.shape[2], self.key.shape[2]
        return traffic.hops(self.group.world, *lengths, *self.limits_of_elements(), self.layout)


@dataclass(frozen=True)
class Gathered:
    """What every rank needs about all keys: where they stand, and what hides them or adds to their scores."""

    positions: dict[str, Position]
    key_mask: Bool[Tensor, "B Lk"] | None
    segments: Int[Tensor, "B Lk"] | None
    key_bias: Float[Tensor, "#B #Hq Lk"] | None


def gathered(call: Call) -> Gathered:
    """The same of a call, from all ranks."""
    return Gathered(
        call.key_positions.whole(call.group, call.layout),
        None if call.key_mask is None else call.whole(call.key_mask),
        None if call.segments is None else call.whole(call.segments[1]),
        None if call.key_bias is None else call.whole(call.key_bias),
    )


def with_prepared_keys(call: Call) -> Call:
    """The call with its keys as the encoding prepares them; each rank prepares its own pieces."""
    key, encoding = call.key, call.encoding
    if isinstance(encoding, ScoreTerms):
        if encoding.key is None:
            return call
        return replace(call, key=encoding.key.reshape(key.shape), encoding=replace(encoding, key=None))
    if encoding is None or not encoding.rewrites_keys:
        return call
    pieces = call.pieces(key)
    return replace(call, key=torch.cat([prepare(encoding, one, call.key_positions.of(at)) for at, one in pieces], 2))


def lowered(call: Call, keys: Gathered) -> list[Problem]:
    """One problem per piece of the queries; its keys and values are zeros in the shape of those of all ranks."""
    pieces = call.pieces(call.query)
    return [_problem(call, keys, query, call.query_positions.of(piece), piece) for piece, query in pieces]


def lower_all_ranks(call: Call, keys: Gathered) -> Problem:
    """One problem for all queries of all ranks, with zeros in their shape. Its tables are those of the whole."""
    b, heads, length, width = call.query.shape
    whole = Piece(0, 0, length * call.group.world)
    query = call.query.new_zeros(1).expand(b, heads, whole.length, width)
    bare = replace(call, attn_mask=None, segments=None)
    if isinstance(call.encoding, ScoreTerms):
        zero, count = query.new_zeros(1), whole.length
        terms = _with_rows(call.encoding, lambda one: zero.expand(*one.shape[:-2], count, one.shape[-1]))
        bare = replace(bare, encoding=terms)
    where = call.query_positions.whole(call.group, call.layout)
    return _problem(bare, replace(keys, segments=None), query, where, whole)


def _problem(call: Call, keys: Gathered, query: Tensor, where: dict[str, Position], piece: Piece) -> Problem:
    key, value = call.keys_of_all()
    encoding, mask = call.encoding, call.attn_mask
    if isinstance(encoding, ScoreTerms) and query.shape[2] != call.query.shape[2] * call.group.world:
        encoding = _with_rows(encoding, lambda one: one[..., piece.here(), :])
    if mask is not None and mask.dim() > 1 and mask.shape[-2] > 1:
        mask = mask[..., piece.here(), :]
    lengths = query.shape[2], key.shape[2]
    sequence = Positions(where[SEQUENCE], keys.positions[SEQUENCE], *lengths, query.device, *call.within)
    sides = ({axis: place for axis, place in side.items() if axis != SEQUENCE} for side in (where, keys.positions))
    places = places_beside(sequence, *sides)
    options = replace(call.options, attn_mask=mask)
    made = request(query, key, value, call.batch, places, encoding, options, keys_are_prepared=True, return_lse=True)
    segments = None if call.segments is None else (call.segments[0][:, piece.here()], keys.segments)
    return made.problem.replace(
        mask=replace(made.problem.mask, key_mask=keys.key_mask, segments=segments),
        key_bias=keys.key_bias,
        part=Part(piece.start, 0, 0, query.shape[1]),
        seed=call.seed,
    )


def check_whole_rows(call: Call) -> None:
    """attn_mask has the rows of this rank's queries, and the caller's own terms belong to its queries and keys.

    Raises ShapeError: for others, such as those of the whole sequence: its first rows would be taken for this rank's.
    """
    if call.attn_mask is not None:
        check_attn_mask(call.attn_mask, call.batch, call.query, call.keys_of_all()[0])
    if isinstance(call.encoding, ScoreTerms):
        _check_rows(call.encoding, call)


def _check_rows(terms: ScoreTerms, call: Call) -> None:
    for name, tensor, part in (
        ("query", terms.query, call.query),
        ("key", terms.key, call.key),
        ("relative_query", terms.relative_query, call.query),
    ):
        expected = [*call.batch, *part.shape[1:]]
        free = name == "relative_query"  # it has its own width
        if tensor is not None and list(tensor.shape[: -1 if free else None]) != (expected[:-1] if free else expected):
            raise ShapeError(
                f"ScoreTerms {name}: got shape {list(tensor.shape)}; expected {expected}"
                f"{' or another width' if free else ''}, this rank's part; relattn.distributed.split makes it"
            )
    for of_axis in terms.axes.values():
        _check_rows(of_axis, call)


def _with_rows(terms: ScoreTerms, of: Callable[[Tensor], Tensor]) -> ScoreTerms:
    """The caller's own terms, with other rows in what is multiplied with keys: those `of` what they have."""
    given = (("query", terms.query), ("relative_query", terms.relative_query))
    rows = {name: of(tensor) for name, tensor in given if tensor is not None}
    return replace(terms, axes={names: _with_rows(part, of) for names, part in terms.axes.items()}, **rows)
