"""The softmax in base 2: S is held as S * log2(e), weights are 2^S.

exp2 takes about the same time for -inf and for large negative numbers as for others. exp takes several times as long
for these: `python -m measure small-numbers`.
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

    Beside a weight near 1 in its row a weight this small is far below rounding: 24 orders of magnitude in float32. But
    its products are subnormal numbers, and these slow a matrix product many times.
    """
    limits = torch.finfo(exponents.dtype)
    return torch.threshold_(exponents, math.log2(limits.tiny / limits.eps), -torch.inf).exp2_()
