"""Positions: where queries and keys stand, and the span of offsets that causality and window leave visible."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from relattn.errors import UnsupportedError

LONGEST_SPAN = 2**24
"""More rows than any sequence needs: only gaps between listed positions lead there, and every row costs memory."""

Position = int | Int64[Tensor, ""] | Int64[Tensor, "L"] | Int64[Tensor, "B L"]


def is_explicit(position: Position) -> bool:
    """Whether `position` lists every element's position, rather than that of the first one."""
    return isinstance(position, Tensor) and position.dim() > 0


def expand_position(position: Position, length: int, device: torch.device) -> Int64[Tensor, "*B L"]:
    """The position of each of `length` elements: [L], or [B, L] where the caller listed them per batch."""
    if is_explicit(position):
        assert isinstance(position, Tensor)
        return position.to(torch.int64)
    return contiguous_range(position, length, device)


def int64_start(position: Position) -> Position:
    """In int64: a position of a narrower integer dtype would wrap in arithmetic."""
    return position.to(torch.int64) if isinstance(position, Tensor) else position


def contiguous_range(first: int | Int64[Tensor, ""], count: int, device: torch.device) -> Int64[Tensor, "count"]:
    """first, first + 1, ..., first + count - 1."""
    if isinstance(first, Tensor):
        return torch.arange(count, device=device) + first
    return torch.arange(first, first + count, device=device)


def _part(position: Position, batch: int, elements: slice) -> Position:
    """The position of some of one batch element's elements."""
    if not is_explicit(position):
        return position + elements.start
    assert isinstance(position, Tensor)
    return (position[batch] if position.dim() == 2 else position)[elements]


def limits(is_causal: bool, window: tuple[int | None, int | None] | None) -> tuple[int | None, int | None]:
    """The smallest and the largest offset that causality and window allow, None for no limit."""
    left, right = window or (None, None)
    lowest = None if left is None else -left
    if is_causal:
        return lowest, 0
    return lowest, right


class Span(NamedTuple):
    """The offsets first, first + 1, ..., first + count - 1; count is at least 1."""

    first: int | Int64[Tensor, ""]
    count: int

    def offsets(self, device: torch.device) -> Int64[Tensor, "count"]:
        """Every offset of the span, ascending."""
        return contiguous_range(self.first, self.count, device)


class RowMemo(Protocol):
    """Keeps rows that depend on parameters and offsets only, so that a decoder computes each of them once."""

    def rows(self, owner: object, span: Span, compute: Callable[[Span], Tensor]) -> Tensor:
        """The rows [H, count, D] of `span`, taken from what `compute` gave before where that covers them."""
        ...


@dataclass(frozen=True)
class Positions:
    """offset d_ij = key position_j - query position_i, visible where lowest <= d <= highest.

    query, key: the position of the first element (int, or a 0-d integer tensor: the elements follow one another), or an
        explicit position for every element, [L] or [B, L].
    query_length Lq, key_length Lk: the number of elements.
    lowest, highest: the limits that causality (highest = 0) and window set, None for no limit.
    memo: where rows may be kept between calls (a cache), None to compute them each time.
    """

    query: Position
    key: Position
    query_length: int
    key_length: int
    device: torch.device
    lowest: int | None = None
    highest: int | None = None
    memo: RowMemo | None = None

    @property
    def contiguous(self) -> bool:
        """Whether queries and keys each follow one another, so that an offset is a diagonal of the score matrix."""
        return not (is_explicit(self.query) or is_explicit(self.key))

    def query_positions(self) -> Int64[Tensor, "*B Lq"]:
        """The position of every query."""
        return expand_position(self.query, self.query_length, self.device)

    def key_positions(self) -> Int64[Tensor, "*B Lk"]:
        """The position of every key."""
        return expand_position(self.key, self.key_length, self.device)

    def offsets(self) -> Int64[Tensor, "*B Lq Lk"]:
        """d_ij for every pair: quadratic in the length."""
        return self.key_positions().unsqueeze(-2) - self.query_positions().unsqueeze(-1)

    def tile(self, batch: int, queries: slice, keys: slice) -> Positions:
        """Where some of the queries and keys of one batch element stand."""
        return replace(
            self,
            query=_part(self.query, batch, queries),
            key=_part(self.key, batch, keys),
            query_length=queries.stop - queries.start,
            key_length=keys.stop - keys.start,
            memo=None,
        )

    def of_keys(self, first: int, count: int) -> Positions:
        """Where all queries and the keys first .. first + count - 1 stand."""
        if is_explicit(self.key):
            assert isinstance(self.key, Tensor)
            key: Position = self.key[..., first : first + count]
        else:
            key = self.key + first
        return replace(self, key=key, key_length=count, memo=None)

    def offset(self, query: int, key: int) -> int | Int64[Tensor, ""]:
        """d of the query and the key at these indices, where positions are contiguous."""
        return self.key - self.query + key - query

    @property
    def first_diagonal(self) -> int | Int64[Tensor, ""]:
        """The offset of the last query and first key; diagonal m = j - i + (Lq - 1) has offset first_diagonal + m."""
        assert self.contiguous
        return self.offset(self.query_length - 1, 0)

    @property
    def visible(self) -> tuple[int | Int64[Tensor, ""], int | Int64[Tensor, ""]]:
        """The smallest and the largest offset of any visible pair; the first exceeds the second where there is none.

        Explicit positions: read from the tensors as ints, which waits for their device.
        """
        if not self.contiguous:
            return self._visible_explicit()
        first = self.first_diagonal
        last = first + self.query_length + self.key_length - 2
        if self.lowest is not None:
            first = first.clamp(min=self.lowest) if isinstance(first, Tensor) else max(first, self.lowest)
        if self.highest is not None:
            last = last.clamp(max=self.highest) if isinstance(last, Tensor) else min(last, self.highest)
        return first, last

    def visible_within(self, furthest: int) -> tuple[int, int]:
        """The smallest and largest visible offset d with |d| <= furthest, as far as ints tell: else all of those.

        A graph whose lengths are open is not asked: rows as many as they ask for would tie it to them.
        """
        if torch.compiler.is_compiling():
            return -furthest, furthest
        first, last = self.visible if self.contiguous else (-furthest, furthest)
        if isinstance(first, Tensor) or isinstance(last, Tensor) or first > last:
            return -furthest, furthest
        return min(max(first, -furthest), furthest), min(max(last, -furthest), furthest)

    def _visible_explicit(self) -> tuple[int, int]:
        """The extremes over the queries of the offsets of the first and the last key that each can see."""
        if torch.compiler.is_exporting():
            raise UnsupportedError(
                "query_position, key_position: got explicit positions in an export, and an encoding that reads them "
                "for the rows it needs, which a graph cannot; give starts, or use an encoding whose table clamps or "
                "zeroes"
            )
        batch = torch.broadcast_shapes(self.query_positions().shape[:-1], self.key_positions().shape[:-1])
        query = self.query_positions().expand(*batch, -1).contiguous()
        key = self.key_positions().expand(*batch, -1).sort().values
        if query.numel() == 0 or key.numel() == 0:
            return 0, -1
        first, end = torch.zeros_like(query), torch.full_like(query, self.key_length)
        if self.lowest is not None:
            first = torch.searchsorted(key, query + self.lowest)
        if self.highest is not None:
            end = torch.searchsorted(key, query + self.highest, right=True)
        seeing = first < end
        if not seeing.any():
            return 0, -1
        nearest = key.gather(-1, first.clamp(max=self.key_length - 1)) - query
        farthest = key.gather(-1, (end - 1).clamp(min=0)) - query
        return int(nearest[seeing].min()), int(farthest[seeing].max())

    @property
    def binding(self) -> tuple[int | None, int | None]:
        """(lowest, highest) without a limit that forbids no pair, as far as starts given as ints tell."""
        first = self.first_diagonal if self.contiguous else None
        if not isinstance(first, int):
            return self.lowest, self.highest
        last = first + self.query_length + self.key_length - 2
        lowest = None if self.lowest is None or first >= self.lowest else self.lowest
        highest = None if self.highest is None or last <= self.highest else self.highest
        return lowest, highest

    @property
    def span(self) -> Span:
        """Every visible offset (offset 0 where none is): what an encoding evaluates its function of the offset on.

        With a start given as a tensor the limits cannot shorten it (that would read the tensor), so it is Lq + Lk - 1
        rows long.
        """
        first, last = self.visible
        if isinstance(first, Tensor) or isinstance(last, Tensor):
            return Span(self.first_diagonal, max(self.query_length + self.key_length - 1, 1))
        if last - first >= LONGEST_SPAN:
            raise ValueError(
                f"query_position, key_position: offsets {first}..{last} are visible, more than the {LONGEST_SPAN} that "
                "an encoding makes rows for; set a window, or number the positions with smaller gaps"
            )
        return Span(first, last - first + 1) if first <= last else Span(0, 1)

    def rows(self, owner: object, compute: Callable[[Span], Float[Tensor, "H count D"]]) -> Float[Tensor, "H count D"]:
        """compute(span), or what `owner` computed for a call before, where a memo keeps it."""
        if self.memo is None:
            return compute(self.span)
        return self.memo.rows(owner, self.span, compute)
