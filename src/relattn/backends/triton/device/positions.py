"""Where the tokens of one side stand on an axis: their positions, read from a list or computed from digits.

p(n)  =  list[n]        or        start + sum_m step_m * ((n - prefix_tokens + first_m) // repeat_m  mod  length_m)

Rows, columns and frames of a grid are digits. No list is written for them on an axis beside the sequence.
"""

# pyright: reportGeneralTypeIssues=false

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from relattn.positions.contiguous import ContiguousPositions
from relattn.positions.grid import GridPositions
from relattn.positions.position import Position


class Divisor(NamedTuple):
    """n // size = (n * magic >> 32) >> shift for every n from 0 to 2^31 - 1 (Granlund and Montgomery 1994).

    With 2^shift < size <= 2^(shift + 1) the magic number is 2^(32 + shift) / size, rounded up. size: 2 at least.
    """

    size: int
    magic: int
    shift: int


class Term(NamedTuple):
    """One digit: step * ((n + first) // repeat mod length). repeat: None for 1. length: None if no token reaches it."""

    step: int
    first: int
    repeat: Divisor | None
    length: Divisor | None


class Computed(NamedTuple):
    """Digits; the first `prefix_tokens` tokens stand off the grid. prefix_tokens: None for 0."""

    start: int
    prefix_tokens: int | None
    off_grid: int
    terms: tuple[Term, ...]


class Side(NamedTuple):
    """The positions of the queries, or of the keys. at: the list, int64, with the step from batch element to batch
    element, 0 where all share it; None where they are computed.
    """

    at: Tensor | None
    batch: int | None
    digits: Computed | None


def side_of(position: Position, length: int, device: torch.device) -> Side:
    """The positions of `length` tokens. Digits that 32 bits do not count are written as a list."""
    computed = None
    if isinstance(position, GridPositions):
        computed = _computed(position, length)
    elif isinstance(position, ContiguousPositions) and not isinstance(position.start, Tensor):
        computed = _computed(GridPositions(((1, 1, max(length, 1)),), start=position.start), length)
    if computed is not None:
        return Side(None, None, computed)
    every = position.expand(length, device)
    every = every if every.stride(-1) == 1 else every.contiguous()
    return Side(every, 0 if every.dim() == 1 or every.shape[0] == 1 else every.stride(0), None)


def _computed(digits: GridPositions, length: int) -> Computed | None:
    """None where a number of tokens does not fit into 31 bits. `first` is left as it is if it does: Triton compiles
    anew for numbers of other kinds.
    """
    start, terms = digits.start, []
    counted = max(length - digits.prefix_tokens, 1)
    for step, repeat, count in digits.terms:
        first = digits.first
        turns = (first + counted - 1) // repeat
        if count == 1 or turns == 0:  # always 0
            continue
        starts_again = turns >= count
        if first + counted >= 2**31 and starts_again:
            first %= repeat * count
        elif first + counted >= 2**31:
            start += first // repeat * step
            first %= repeat
        if first + counted >= 2**31:
            return None
        terms.append(Term(step, first, divisor_of(repeat), divisor_of(count if starts_again else None)))
    return Computed(start, digits.prefix_tokens or None, digits.off_grid, tuple(terms))


def divisor_of(size: int | None) -> Divisor | None:
    """None for 1, and for None."""
    if size is None or size == 1:
        return None
    shift = (size - 1).bit_length() - 1
    return Divisor(size, -(-(2 ** (32 + shift)) // size), shift)


@triton.jit
def positions_of(side, batch, n, count):
    """p(n) in int64, for tokens n of a batch element; any number where a token does not exist."""
    if side.digits is None:
        at = side.at + batch.to(tl.int64) * side.batch
        positions = tl.load(at + n, mask=(n >= 0) & (n < count), other=0)
    else:
        positions = _of_digits(side.digits, n)
    return positions


@triton.jit
def _of_digits(digits, n):
    number = n
    if digits.prefix_tokens is not None:
        number = n - digits.prefix_tokens
    positions = (0 * n).to(tl.int64) + digits.start
    for m in tl.static_range(len(digits.terms)):
        term = digits.terms[m]
        digit = (number + term.first).to(tl.uint32)
        if term.repeat is not None:
            digit = _quotient(digit, term.repeat)
        if term.length is not None:
            digit -= _quotient(digit, term.length) * tl.cast(term.length.size, tl.uint32)
        positions += digit.to(tl.int64) * term.step
    if digits.prefix_tokens is not None:
        positions = tl.where(number >= 0, positions, digits.off_grid)
    return positions


@triton.jit
def _quotient(n, divisor):
    """n // size, for n below 2^31."""
    return tl.umulhi(n, tl.cast(divisor.magic, tl.uint32) + 0 * n) >> tl.cast(divisor.shift, tl.uint32)
