"""The random numbers of dropout: a function of the seed and of the pair, the same in every backend and every order.

Philox4x32-10 (Salmon, Moraes, Dror, Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3") makes four words of 32
bits from a counter of four words and a key of two. The counter of pair (i, j) is (j, i // 4, n, 0), with n the query
head counted over the batch. The key is the seed's two halves. The pair's word is number i % 4 of the four.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int, Int64
from torch import Tensor

from relattn.equation.problem import Problem

LOW = 2**32 - 1
MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
WEYL = 0x9E3779B9, 0xBB67AE85
"""The growth of the key from round to round: the golden ratio and sqrt(3) - 1, as fractions of 2^32."""
ROUNDS = 10


def seed_of(problem: Problem, device: torch.device | str = "cpu") -> Int64[Tensor, ""] | None:
    """The problem's own seed, or a seed drawn from torch's generator on this device; None where nothing is dropped."""
    if problem.dropout_p == 0.0:
        return None
    if problem.seed is None:
        return torch.randint(2**63 - 1, (), device=device)
    return torch.full((), problem.seed, dtype=torch.int64, device=device)


def factors_of(problem: Problem, seed: int) -> Float[Tensor, "B Hq Lq Lk"]:
    """What the weights of all pairs are multiplied with: 1 / (1 - p) where dropout keeps a pair, 0 elsewhere."""
    batch, heads, queries, _ = problem.query.shape
    first_query, first_key, first_head, num_heads = problem.dropout_origin()
    device, kept = problem.query.device, 1.0 - problem.dropout_p
    of_batch = torch.arange(batch, device=device).view(-1, 1) * num_heads
    counted = (of_batch + torch.arange(first_head, first_head + heads, device=device)).flatten()
    rows, keys = slice(first_query, first_query + queries), slice(first_key, first_key + problem.key.shape[2])
    pairs = kept_pairs(seed, kept, counted, rows, keys, problem.score_dtype()).unflatten(0, (batch, heads))
    return pairs.mul_(1.0 / kept) if kept > 0.0 else pairs


def philox(counter: tuple[Tensor, ...], key: tuple[int, int]) -> tuple[Tensor, ...]:
    """The four words of every counter.

    counter: four int64 tensors that broadcast. Their numbers lie below 2^32, as do those of the key's two and of the
        answer. The halves of a product are taken from it modulo 2^64, in place, because allocating memory costs more
        than the arithmetic.
    """
    c0, c1, c2, c3 = (word.clone() for word in torch.broadcast_tensors(*counter))
    k0, k1 = key
    first, second = torch.empty_like(c0), torch.empty_like(c0)
    for _ in range(ROUNDS):
        torch.mul(c0, MULTIPLIERS[0], out=first)
        torch.mul(c2, MULTIPLIERS[1], out=second)
        torch.bitwise_right_shift(second, 32, out=c0).bitwise_and_(LOW).bitwise_xor_(c1).bitwise_xor_(k0)
        torch.bitwise_right_shift(first, 32, out=c2).bitwise_and_(LOW).bitwise_xor_(c3).bitwise_xor_(k1)
        torch.bitwise_and(second, LOW, out=c1)
        torch.bitwise_and(first, LOW, out=c3)
        k0, k1 = (k0 + WEYL[0]) & LOW, (k1 + WEYL[1]) & LOW
    return c0, c1, c2, c3


def kept_pairs(
    seed: int, kept: float, heads: Int[Tensor, "H"], queries: slice, keys: slice, dtype: torch.dtype
) -> Float[Tensor, "H n m"]:
    """1 where dropout keeps a pair, 0 elsewhere. It keeps a pair with the probability `kept`, below 1.

    heads: the query heads, counted over the batch.
    """
    first, last = queries.start // 4, (queries.stop - 1) // 4
    device = heads.device
    counter = (
        torch.arange(keys.start, keys.stop, device=device),
        torch.arange(first, last + 1, device=device).view(-1, 1),
        heads.view(-1, 1, 1),
        torch.zeros((), dtype=torch.int64, device=device),
    )
    words = philox(counter, (seed & LOW, seed >> 32))
    is_kept = torch.stack([word < int(kept * 2**32) for word in words], dim=2)
    rows = is_kept.flatten(1, 2)[:, queries.start - 4 * first : queries.stop - 4 * first]
    return rows.to(dtype)
