"""From how many queries per rank on a ring's products hide its messages, and the bytes of a full table's gradient."""

from __future__ import annotations

from typing import NamedTuple


class Hidden(NamedTuple):
    """The fewest queries per rank with which a hop of the ring takes no longer than its products."""

    forward: float
    backward: float


def hidden_from(
    query_heads: int, key_heads: int, size: int, sums: int, flops: float, bandwidth: float, visible: float = 1.0
) -> Hidden:
    """The number n of queries per rank from which on the products hide the ring's messages.

    flops: floating-point operations per second of the products, F. bandwidth: bytes per second, W. visible: the share
        of a hop's pairs that are computed, about 1/2 under causality with zigzag.

    Derivation, with D = Dv: in a hop a rank multiplies its n queries with m keys, and sends m keys and values. A
    product of two matrices takes 2 Hq n m D operations, so

        forward   2 products (S = Q K^T, O = P V)                   4 Hq n m D / F >= 2 Hk m D e / W
                  n >= e (Hk / Hq) F / (2 W)
        backward  5 products (S again, dP, dV, dQ, dK), and gradients that travel beside the chunk
                  10 Hq n m D / F >= 2 Hk m D (e + w) / W
                  n >= (e + w) (Hk / Hq) F / (5 W)

    B, m and D cancel out: only the number of queries counts. If only a share of the pairs is visible, n grows by the
    inverse of this share. Products with an encoding's tables come on top, and latency is left out. The gradients'
    last step, to the rank that owns the keys, comes once per call and is not hidden.

    The factor 3 in place of 2 and 5, n >= e (Hk / Hq) F / (3 W), is another count for both passes together: six
    products (S is kept, not computed again), the keys and values twice, and no gradients that travel. With everything
    counted both passes together give n >= (2 e + w) (Hk / Hq) F / (7 W).
    """
    each = key_heads / query_heads * flops / bandwidth / visible
    return Hidden(size * each / 2, (size + sums) * each / 5)


def full_table_gradient(length: int, heads: int, width: int, sums: int) -> int:
    """Bytes of the gradient of a table with a row for each of the 2 L - 1 offsets and each head, on every rank.

    (2 L - 1) Hq D w. With Hq = Hk and w = e this is nearly as much as the keys and values of all ranks together, N
    times those of one rank. Clipped or shared rows need less.
    """
    return (2 * length - 1) * heads * width * sums
