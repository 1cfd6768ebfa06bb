"""Positions: where queries and keys stand, and the span of offsets that causality and window leave visible."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from relattn.errors import UnsupportedError
from relattn.interception import is_exporting
from relattn.positions.certainty import statically_true
from relattn.positions.contiguous import ContiguousPositions, consecutive
from relattn.positions.grid import GridPositions
from relattn.positions.position import Position

SEQUENCE = "sequence"
"""The axis that every call has. Only this axis decides causality and window."""

LONGEST_SPAN = 2**24
"""More rows than any sequence needs. Only gaps between explicit positions give so many, and every row costs memory."""

Window = tuple[int | None, int | None]
Start = int | Int64[Tensor, ""]


def limits(is_causal: bool, window: Window | None) -> tuple[int | None, int | None]:
    """The smallest and the largest offset that causality and window allow; None for no limit."""
    left, right = window or (None, None)
    return None if left is None else -left, 0 if is_causal else right


class Span(NamedTuple):
    """The offsets first, first + 1, ..., first + count - 1; count is at least 1."""

    first: Start
    count: int

    def offsets(self, device: torch.device) -> Int64[Tensor, "count"]:
        """Every offset of the span, ascending."""
        return consecutive(self.first, self.count, device)

    def rounded(self) -> Span:
        """These offsets and more, up to powers of two, so that a decoder asks for the same span at many tokens.

        At most about twice as many. As it is in a graph, where its start is a tensor, and where it lies far from 0.
        """
        if torch.compiler.is_compiling() or isinstance(self.first, Tensor):
            return self
        first, last = min(self.first, 0), max(self.first + self.count - 1, 0)
        first, last = (-(1 << (-first - 1).bit_length()) if first else 0), (1 << (last - 1).bit_length() if last else 0)
        return Span(first, last - first + 1) if last - first <= 2 * self.count else self


class RowMemo(Protocol):
    """Keeps rows that depend only on parameters and offsets, so that a decoder computes each of them once."""

    def rows(self, owner: object, span: Span, compute: Callable[[Span], Tensor]) -> Tensor:
        """The rows [H, count, D] or [H, count] of `span`, from earlier results of `compute` where these cover them."""
        ...


@dataclass(frozen=True)
class Positions:
    """offset d_ij = key position_j - query position_i, visible where lowest <= d <= highest.

    query, key: where each side stands. query_length Lq, key_length Lk: the number of elements.
    lowest, highest: the limits that causality (highest = 0) and window set and that hide at least one pair; None for
        one that hides nothing. Only int starts allow dropping a limit.
    device: where tensors of positions and offsets are made.
    memo: keeps rows between calls (a cache); None to compute them each time.
    axis: the name of the axis; for several axes, their names joined.
    origin: the offset of the first query and the first key where both sides' positions are contiguous, so that an
        offset is a diagonal of the score matrix; None where a side's positions are explicit and every pair has its own
        offset.
    known_origin: `origin` where it is an int, so that shapes alone tell which pairs are visible; None otherwise.
    prefix_tokens: how many queries and keys, from the first, stand off the grid on this axis.
    """

    query: Position
    key: Position
    query_length: int
    key_length: int
    device: torch.device
    lowest: int | None = None
    highest: int | None = None
    memo: RowMemo | None = None
    axis: str = SEQUENCE
    origin: int | Int64[Tensor, ""] | None = field(init=False, compare=False)
    known_origin: int | None = field(init=False, compare=False)
    prefix_tokens: tuple[int, int] = field(init=False, compare=False, default=(0, 0))
    _read: list[tuple[int, int]] = field(init=False, compare=False, repr=False, default_factory=list)

    def __post_init__(self) -> None:
        origin = None
        if isinstance(self.query, ContiguousPositions) and isinstance(self.key, ContiguousPositions):
            origin = self.key.start - self.query.start
        known = None if isinstance(origin, Tensor) else origin
        object.__setattr__(self, "origin", origin)
        object.__setattr__(self, "known_origin", known)
        if origin is None:
            object.__setattr__(self, "prefix_tokens", (_prefix_tokens(self.query), _prefix_tokens(self.key)))
        if known is None:
            return
        holds = statically_true if torch.compiler.is_compiling() else bool  # no function more in a call without a graph
        if self.lowest is not None and holds(known - self.query_length + 1 >= self.lowest):
            object.__setattr__(self, "lowest", None)
        if self.highest is not None and holds(known + self.key_length - 1 <= self.highest):
            object.__setattr__(self, "highest", None)

    def query_positions(self) -> Int64[Tensor, "*B Lq"]:
        """The position of every query."""
        return self.query.expand(self.query_length, self.device)

    def key_positions(self) -> Int64[Tensor, "*B Lk"]:
        """The position of every key."""
        return self.key.expand(self.key_length, self.device)

    def offsets(self) -> Int64[Tensor, "*B Lq Lk"]:
        """d_ij for every pair: quadratic in the length."""
        return self.key_positions().unsqueeze(-2) - self.query_positions().unsqueeze(-1)

    def part(self, queries: slice, keys: slice, batch: int | None = None) -> Positions:
        """Where some of the queries and keys stand; in one batch element where `batch` is given."""
        lengths = {"query_length": queries.stop - queries.start, "key_length": keys.stop - keys.start}
        return replace(
            self, query=self.query.part(queries, batch), key=self.key.part(keys, batch), **lengths, memo=None
        )

    @property
    def visible(self) -> tuple[int | Int64[Tensor, ""], int | Int64[Tensor, ""]]:
        """The smallest and the largest offset of any visible pair; the first exceeds the second where there is none.

        Explicit positions are read from the tensors as ints, which waits for their device. A graph cannot read them: it
        takes the two limits where both are given. These and those of digits may lie further apart than the offsets.
        """
        if self.query_length == 0 or self.key_length == 0:
            return 0, -1
        if self.origin is None:
            prefix_queries, prefix_keys = self.prefix_tokens
            if prefix_queries >= self.query_length or prefix_keys >= self.key_length:
                return 0, -1
            if self.lowest is not None and self.highest is not None and torch.compiler.is_compiling():
                return self.lowest, self.highest
            if not self._read:  # only once, because it sorts and waits for the device
                self._read.append(self._visible_in_digits() or self._visible_explicit())
            return self._read[0]
        first, last = self.origin - self.query_length + 1, self.origin + self.key_length - 1
        if self.lowest is not None:
            first = first.clamp(min=self.lowest) if isinstance(first, Tensor) else max(first, self.lowest)
        if self.highest is not None:
            last = last.clamp(max=self.highest) if isinstance(last, Tensor) else min(last, self.highest)
        return first, last

    def _visible_in_digits(self) -> tuple[int, int] | None:
        """The extremes by arithmetic, for positions that are not explicit and have no limits; None elsewhere."""
        if self.lowest is not None or self.highest is not None:
            return None
        extents = []
        for side, length in ((self.query, self.query_length), (self.key, self.key_length)):
            if isinstance(side, GridPositions):
                extents.append(side.extent(length))
            elif isinstance(side, ContiguousPositions) and not isinstance(side.start, Tensor):
                extents.append((side.start, side.start + length - 1))
            else:
                return None
        (first_query, last_query), (first_key, last_key) = extents
        return first_key - last_query, last_key - first_query

    def _visible_explicit(self) -> tuple[int, int]:
        """The extremes over the queries of the offsets of the first and the last key that each can see."""
        if is_exporting():
            raise UnsupportedError(
                "query_position, key_position: got explicit positions in an export, and an encoding that reads them "
                "for the rows it needs, which a graph cannot; give starts, or use an encoding whose table clamps or "
                "zeroes"
            )
        prefix_queries, prefix_keys = self.prefix_tokens
        query, key = self.query_positions()[..., prefix_queries:], self.key_positions()[..., prefix_keys:]
        batch = torch.broadcast_shapes(query.shape[:-1], key.shape[:-1])
        query, key = query.expand(*batch, -1).contiguous(), key.expand(*batch, -1).sort().values
        if query.numel() == 0:  # no batch element
            return 0, -1
        first, end = reach_of_positions(query, key, self.lowest, self.highest)
        seeing = first < end
        if not seeing.any():
            return 0, -1
        nearest = key.gather(-1, first.clamp(max=key.shape[-1] - 1)) - query
        farthest = key.gather(-1, (end - 1).clamp(min=0)) - query
        return int(nearest[seeing].min()), int(farthest[seeing].max())

    @property
    def span(self) -> Span:
        """Every visible offset (offset 0 where none is). An encoding evaluates its function of the offset on these.

        With a start given as a tensor the limits cannot shorten the span, because that would read the tensor. It then
        has Lq + Lk - 1 offsets.
        """
        if isinstance(self.origin, Tensor):
            return Span(self.origin - self.query_length + 1, max(self.query_length + self.key_length - 1, 1))
        first, last = self.visible
        assert not isinstance(first, Tensor) and not isinstance(last, Tensor)
        holds = statically_true if torch.compiler.is_compiling() else bool  # no function more in a call without a graph
        if holds(last - first >= LONGEST_SPAN):
            axis, window = (f" on the axis {self.axis!r}", "") if self.axis != SEQUENCE else ("", "set a window, or ")
            raise ValueError(
                f"query_position, key_position: offsets {first}..{last} are visible{axis}, more than the "
                f"{LONGEST_SPAN} that an encoding makes rows for; {window}number the positions with smaller gaps"
            )
        return Span(first, last - first + 1) if first <= last else Span(0, 1)

    def span_within(self, furthest: int) -> Span:
        """The visible offsets d with |d| <= furthest, at least one of them.

        It is all of -furthest .. furthest when starts are tensors, positions are explicit, or a graph is compiled.
        Reading positions would wait for the device, and a table sized by open lengths would specialise the graph. For a
        memo there are more than are visible (`Span.rounded`): a decoder asks for the same at most tokens.
        """
        whole = Span(-furthest, 2 * furthest + 1)
        if self.known_origin is None or torch.compiler.is_compiling():
            return whole
        first, last = self.visible
        assert not isinstance(first, Tensor) and not isinstance(last, Tensor)
        if first > last:
            return whole
        if self.memo is not None:
            first, count = Span(first, last - first + 1).rounded()
            assert not isinstance(first, Tensor)
            last = first + count - 1
        first, last = min(max(first, -furthest), furthest), min(max(last, -furthest), furthest)
        return Span(first, last - first + 1)

    def rows(
        self, owner: object, compute: Callable[[Span], Float[Tensor, "H count *D"]], span: Span
    ) -> Float[Tensor, "H count *D"]:
        """compute(span), or what `owner` computed for an earlier call, if a memo keeps it."""
        return compute(span) if self.memo is None else self.memo.rows(owner, span, compute)


def _prefix_tokens(side: Position) -> int:
    return side.prefix_tokens if isinstance(side, GridPositions) else 0


def reach_of_positions(
    query: Int64[Tensor, "*B n"], key: Int64[Tensor, "*B m"], lowest: int | None, highest: int | None
) -> tuple[Int64[Tensor, "*B n"], Int64[Tensor, "*B n"]]:
    """For each query the first of the ascending keys that it reaches by its offset, and the one after the last."""
    first, end = torch.zeros_like(query), torch.full_like(query, key.shape[-1])
    if lowest is not None:
        first = torch.searchsorted(key, query + lowest)
    if highest is not None:
        end = torch.searchsorted(key, query + highest, right=True)
    return first, end


def reach_of_neighbours(
    length: int, others: int, lowest: int | Tensor | None, highest: int | Tensor | None, device: torch.device
) -> tuple[Int64[Tensor, "length"], Int64[Tensor, "length"]]:
    """The same of `length` elements, by the offset of their numbers to those of the others."""
    element = torch.arange(length, device=device)
    first = torch.zeros_like(element) if lowest is None else (element + lowest).clamp(0, others)
    end = torch.full_like(element, others) if highest is None else (element + highest + 1).clamp(0, others)
    return first, end
