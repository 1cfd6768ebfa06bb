"""Dropout in the kernels: which pairs are kept. The numbers are those of `relattn.equation.philox`.

One call of Philox makes four words, those of the queries 4 g .. 4 g + 3 and one key. Along tiles each call is made
once: for a quarter of the rows. Four bits say which of its words keep their pairs, and each row reads its own bit.
"""

# pyright: reportGeneralTypeIssues=false

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from relattn.backends.triton.host.call import Call
from relattn.equation import philox

ROUNDS: tl.constexpr = tl.constexpr(philox.ROUNDS)
A, C = (tl.constexpr(number) for number in philox.MULTIPLIERS)
FIRST, SECOND = (tl.constexpr(number) for number in philox.WEYL)


class Dropout(NamedTuple):
    """What decides which pairs are kept.

    seed: a pointer. limit: the words below it keep; a number without sign, in the bits of one with a sign. factor: of
    what is kept. query, key, head: the first ones in the whole call; heads: those of the whole call. in_fours: 1 where
    the first query is a multiple of 4, else None.
    """

    seed: Tensor
    limit: int
    factor: float
    query: int
    key: int
    head: int
    heads: int
    in_fours: int | None


def dropout_of(call: Call) -> Dropout | None:
    """The numbers of a call; None where all pairs are kept."""
    keep = 1.0 - call.dropout_p
    limit = int(keep * 2**32)
    if call.seed is None or limit == 2**32:
        return None
    limit -= 2**32 if limit >= 2**31 else 0
    return Dropout(
        call.seed, limit, 1.0 / keep if keep > 0.0 else 0.0, *call.part,
        in_fours=1 if call.part.query % 4 == 0 else None,
    )  # fmt: skip


@triton.jit
def dropout_keeps(x, batch, head, i, j):
    """True where dropout keeps the pairs (i, j), which broadcast. Each makes a call for itself, and takes one word.

    So it is where no four rows share their calls: along diagonals, for one query, and where the first query of a part
    is no multiple of 4.
    """
    keep = True
    if x.dropout is not None:
        query = (i + x.dropout.query).to(tl.uint32)
        first, second, third, fourth = _words(x, batch, head, query // 4, j)
        word = query % 4
        keep = _keeps(x, tl.where(word < 2, tl.where(word == 0, first, second), tl.where(word == 2, third, fourth)))
    return keep


@triton.jit
def dropout_keeps_in_tile(x, batch, head, first_query, first_key, TILE: tl.constexpr):
    """`dropout_keeps`, for a tile of queries and keys; its first query is a multiple of 4."""
    i, j = tl.arange(0, TILE)[:, None], first_key + tl.arange(0, TILE)[None, :]
    keep = True
    if x.dropout is not None:
        if x.dropout.in_fours is None:
            keep = dropout_keeps(x, batch, head, first_query + i, j)
        else:
            group = (x.dropout.query + first_query) // 4 + tl.arange(0, TILE // 4)[:, None]
            first, second, third, fourth = _words(x, batch, head, group.to(tl.uint32), j)
            bits = tl.where(_keeps(x, first), 1, 0) | tl.where(_keeps(x, second), 2, 0)
            bits |= tl.where(_keeps(x, third), 4, 0) | tl.where(_keeps(x, fourth), 8, 0)
            keep = (_of_each_row(bits, TILE) & (1 << i % 4)) != 0
    return keep


@triton.jit
def _of_each_row(numbers, TILE: tl.constexpr):
    """Numbers of the groups of four rows, as numbers of the rows: [T / 4, T] to [T, T].

    The gather changes no number. Without it the compiler would make the words again for each of the four rows, because
    it computes what it can in the layout of a result. It does not go beyond a gather.
    """
    of_groups = tl.reshape(numbers, (TILE // 4, 1, TILE))
    of_groups = tl.gather(of_groups, tl.zeros((TILE // 4, 1, TILE), tl.int32), 1)
    return tl.reshape(tl.broadcast_to(of_groups, (TILE // 4, 4, TILE)), (TILE, TILE))


@triton.jit
def _words(x, batch, head, group, j):
    """The four words of a group of four queries and a key, which broadcast: ten rounds.

    Each product of 32 bits by 32 is one instruction. `tl.philox` takes two, one for each half.
    """
    seed = tl.load(x.dropout.seed)
    first_key, second_key = seed.to(tl.uint32), (seed >> 32).to(tl.uint32)
    a, b = (j + x.dropout.key).to(tl.uint32) + 0 * group, group + 0 * j.to(tl.uint32)
    c, d = (batch * x.dropout.heads + x.dropout.head + head).to(tl.uint32) + 0 * b, 0 * b
    for _ in tl.static_range(ROUNDS):
        of_a, of_c = a.to(tl.uint64) * A, c.to(tl.uint64) * C
        a, b = (of_c >> 32).to(tl.uint32) ^ b ^ first_key, of_c.to(tl.uint32)
        c, d = (of_a >> 32).to(tl.uint32) ^ d ^ second_key, of_a.to(tl.uint32)
        first_key, second_key = first_key + FIRST, second_key + SECOND
    return a, b, c, d


@triton.jit
def _keeps(x, word):
    """True where a word keeps its pair."""
    return word < tl.cast(x.dropout.limit, tl.uint32)
