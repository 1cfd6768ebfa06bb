"""Scores whose neighbouring floats are 1 apart: both passes take the same weights as compiled, too.

A compiler may round a product before it subtracts a row's maximum, or after; it must do the same in both.
"""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
import torch

from tests.triton.calls import answered, every_gradient_of
from tests.triton.test_kernels import make_call

pytest.importorskip("triton", reason="Triton is a package for Linux")
pytestmark = [
    pytest.mark.ptx,
    pytest.mark.skipif("TRITON_INTERPRET" in os.environ, reason="the interpreter's kernels cannot be compiled"),
]

LARGE, SEEN = 1e7, 4.0
QUERIES, KEYS, WIDTH = 40, 48, 64


@pytest.mark.parametrize(("dtype", "sizes"), [(torch.float32, (16, 4, 2)), (torch.bfloat16, (32, 4, 2))])
def test_both_passes_take_the_same_weights(
    dtype: torch.dtype, sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of values that are the rows of a unit matrix the answers are the weights, and so are their gradients for such a
    dO. Several keys have a weight: in float32 keys differ by a few of its roundings, in bfloat16 biases do it.
    """
    from relattn.backends.triton.kernels.backward import backward
    from relattn.backends.triton.kernels.forward import forward
    from tests.triton.ptx.launch import emulate

    emulate(sizes, monkeypatch)
    call = make_call(
        dtype, lengths=(QUERIES, KEYS), heads=(1, 1), widths=(WIDTH, KEYS, WIDTH), tables=("bias",), rows=99,
        first=-50, scale=1 / WIDTH, aligned=True,
    )  # fmt: skip
    query = (LARGE * (1 + torch.rand(1, 1, QUERIES, 1))).expand(1, 1, QUERIES, WIDTH)
    key = 1 + SEEN / LARGE * torch.randn(1, 1, KEYS, WIDTH)
    unit = torch.eye(KEYS, dtype=dtype).expand(1, 1, KEYS, KEYS).contiguous()
    call = replace(call, query=query.to(dtype).contiguous(), key=key.to(dtype), value=unit)
    answers = forward(call)
    toward = answered(answers, unit[:, :, :QUERIES].contiguous(), torch.zeros(1, 1, QUERIES))
    again = backward(call, toward, every_gradient_of(call)).value[..., :QUERIES].mT
    # Of a weight, at most 1: the power, the quotient and a sum; and in half precision its own two roundings.
    rounding = 8 * 2.0**-23 + (0.0 if dtype == torch.float32 else torch.finfo(dtype).eps)
    assert (answers.output - again).abs().max() <= rounding
