"""Buckets of logarithmic width: T5's and DeBERTa's."""

from __future__ import annotations

import math

from jaxtyping import Float64, Int64
from torch import Tensor

from relattn.offsets import NEAR


def log_steps(distance: Int64[Tensor, "*n"], first: int, last: int, steps: int) -> Float64[Tensor, "*n"]:
    """steps * log(distance / first) / log(last / first), and whole where that is a whole number.

    By float32 a CPU and a GPU can differ at a whole number, and so by a bucket.
    """
    found = (distance.double() / first).log() * (steps / math.log(last / first))
    whole = found.round()
    return whole.where((found - whole).abs() < NEAR, found)
