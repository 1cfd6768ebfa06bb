"""The softmax in base 2: S is held as S * log2(e), weights are 2^S.

exp2 takes about the same time at -inf and at far negative numbers as at others, while exp takes 15 to 140 times as long
there: `python benchmarks/small_numbers.py`.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

LOG2_E = math.log2(math.e)
LN_2 = math.log(2.0)


def weights_(exponents: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    """2^exponents, in place; 0 where that is below tiny / eps of the dtype.

    Such a weight, beside one near 1 in its row, vanishes far below rounding: 24 orders of magnitude in float32. But
    its products are subnormal numbers, which slow a matrix product down many times.
    """
    limits = torch.finfo(exponents.dtype)
    return torch.threshold_(exponents, math.log2(limits.tiny / limits.eps), -torch.inf).exp2_()
