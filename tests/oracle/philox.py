"""Philox4x32-10 (Salmon, Moraes, Dror, Shaw 2011) counter by counter, and what relattn's dropout makes of it."""

import numpy as np

Words = tuple[int, int, int, int]


def philox(counter: Words, key: tuple[int, int]) -> Words:
    """The paper's ten rounds on integers of Python, which have no width."""
    a, b, c, d = counter
    k, l = key  # noqa: E741
    for _ in range(10):
        first, second = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = (second // 2**32) ^ b ^ k, second % 2**32, (first // 2**32) ^ d ^ l, first % 2**32
        k, l = (k + 0x9E3779B9) % 2**32, (l + 0xBB67AE85) % 2**32  # noqa: E741
    return a, b, c, d


def dropout_factors(seed: int, p: float, batch: int, heads: int, queries: int, keys: int) -> np.ndarray:
    """[B, H, Lq, Lk]: 0 with probability p, else 1 / (1 - p), as docs/equation.md lays the numbers out."""
    kept = np.zeros((batch, heads, queries, keys))
    for b, h, i, j in np.ndindex(*kept.shape):
        words = philox((j, i // 4, b * heads + h, 0), (seed % 2**32, seed // 2**32))
        kept[b, h, i, j] = words[i % 4] < (1.0 - p) * 2**32
    return kept / (1.0 - p) if p < 1.0 else kept
