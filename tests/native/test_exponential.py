"""The e^x of the kernels (kernels/vector.h) against exact values, and how far it may be off.

x = n ln(2) + r; e^x = 2^n p(r), with p = 1 + r + r^2/2 + ... + r^6/720 by Horner's rule. With u = 2^-24, half an eps:

- n is x / ln(2) to the nearest integer, off by its own rounding and that of 1 / ln(2): |r| <= ln(2) (1/2 + 2 u |n|).
- r = (x - n c1) + n c2, ln(2) = c1 - c2. c1 = 355/512 has 9 bits and n at most 7, so n c1 is exact; so is x - n c1, a
  multiple of 2^-25 below 1/2. Rounded are c2, the product n c2 and the sum, which is r.
- Each of Horner's steps rounds a product, unless it is fused, and a sum. The coefficients above 1/2 are rounded, too.
- p leaves the rest of the series out.
- 2^n p is exact: n >= -126 and p >= 1 where n = -126, so no result is subnormal.

`relative_bound` adds these up: 2.55 eps, of which the series' rest is 1.4. Nothing in it looks at the sign of n.
"""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from relattn import relative_attention
from relattn.backends.cpu import operator
from tests.native.sets import every_set

pytestmark = pytest.mark.pairs

U = 2.0**-24
LAST = -87.0
"""The last x whose power is not 0."""
BEYOND = 1.0
"""Far more than the backward pass's scores, summed in another order, exceed the maximum that the forward pass found."""
MOST = 126
"""Of |n|."""


def relative_bound() -> float:
    """What rounding and the series' end may change of e^x, relative to it."""
    ln2, c1, c2 = math.log(2), 355 / 512, float(np.float32(2.12194440e-4))
    largest = ln2 * (0.5 + 2 * U * MOST)
    r = np.linspace(-largest, largest, 20_001)
    value, off = np.full_like(r, 1 / 720), np.full_like(r, U / 720)
    for coefficient in (1 / 120, 1 / 24, 1 / 6, 0.5, 1.0, 1.0):
        product, off = value * r, off * np.abs(r)
        off += U * (np.abs(product) + off)
        value = product + coefficient
        off += U * coefficient if coefficient < 0.5 else 0.0
        off += U * (np.abs(value) + off)
    polynomial = ((off + np.abs(value - np.exp(r))) / np.exp(r)).max()
    of_r = MOST * abs(c1 - c2 - ln2) + U * MOST * c2 + U * (largest + U)
    return float((1 + polynomial) * math.exp(of_r) - 1)


def points() -> Tensor:
    """Over the whole range: evenly, on both sides of where n changes, at its ends, and small ones."""
    halves = ((np.arange(-MOST, 3) - 0.5) * math.log(2)).astype(np.float32)
    near = halves[:, None].view(np.int32) + np.arange(-40, 41, dtype=np.int32)
    small = 2.0 ** np.arange(-126, 0)
    found = np.concatenate([
        np.linspace(LAST, BEYOND, 200_001), near.view(np.float32).ravel(), small, -small, [0.0, LAST, BEYOND]
    ])  # fmt: skip
    return torch.from_numpy(found[(found >= LAST) & (found <= BEYOND)].astype(np.float32))


def powers(x: Tensor, monkeypatch: pytest.MonkeyPatch) -> Tensor:
    """e^x as the backward pass computes it: the gradient by a value is P = e^(S - maximum) / total, with 0 and 1."""
    run = operator._run

    def with_weights_that_are_powers(problem, inputs, outputs, gradients, seed, *, few=False) -> None:
        if gradients is not None:
            outputs.maximum.zero_(), outputs.total.fill_(1.0)
        run(problem, inputs, outputs, gradients, seed, few=few)

    monkeypatch.setattr(operator, "_run", with_weights_that_are_powers)
    key, value = torch.zeros(1, 1, len(x), 1), torch.zeros(1, 1, len(x), 1, requires_grad=True)
    output = relative_attention(torch.zeros(1, 1, 1, 1), key, value, x.view(1, 1, 1, -1), backend="native")
    (found,) = torch.autograd.grad(output.sum(), value)
    return found.flatten()


@every_set
def test_powers_lie_within_what_rounding_explains(instructions: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = points()
    found, exact = powers(x, monkeypatch).double(), x.double().exp()
    away = ((found - exact).abs() / exact).max().item()
    assert 2 * U < away <= relative_bound() <= 2.56 * 2 * U, away / (2 * U)


@every_set
def test_powers_at_the_ends(instructions: str, monkeypatch: pytest.MonkeyPatch) -> None:
    below = np.nextafter(np.float32(LAST), np.float32(-np.inf))
    x = torch.tensor([0.0, -0.0, -1e-40, float(below), -104.0, -1e30, -torch.inf, torch.nan])
    found = powers(x, monkeypatch)
    assert found[:-1].tolist() == [1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0]
    assert found[-1].isnan()


@every_set
@pytest.mark.parametrize("most", [0, 64], ids=["packed keys", "keys where they lie"])
def test_weights_of_two_keys(most: int, instructions: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second x below the first: e^x / (1 + e^x). Rounded are the sum, its inverse and their product, too."""
    monkeypatch.setattr(operator, "QUERIES_OF_A_KEY", most)
    x = torch.cat([torch.linspace(LAST, 0.0, 4001), torch.tensor([-87.001, -1e4, -torch.inf])])
    query, value = torch.ones(len(x), 1, 1, 1), torch.tensor([0.0, 1.0]).view(1, 1, 2, 1).expand(len(x), 1, 2, 1)
    mask = torch.stack([torch.zeros_like(x), x], dim=-1).view(-1, 1, 1, 2)
    key = torch.zeros(len(x), 1, 2, 1)
    found = relative_attention(query, key, value, mask, backend="native").flatten().double()
    exact = x.double().exp() / (1 + x.double().exp())
    away = ((found - exact).abs() / exact)[:4001].max().item()
    assert away <= (1 + relative_bound()) * (1 + U) ** 3 / (1 - U) - 1, away / (2 * U)
    assert (found[4001:] == 0.0).all()
