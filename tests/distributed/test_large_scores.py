"""Scores so large that neighbouring floats are far apart, 0.002 at 3 * 10^4 and 1 at 10^7: both passes of the ring take
the same weights.

Of values that are the rows of a unit matrix the answers are the weights, and so are their gradients for such a dO.
"""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

import relattn
from relattn.distributed import context_parallel_attention, join, ring_schedule, split
from tests import seeds
from tests.distributed.ranks import Ranks

HEADS, LENGTH, WIDTH = 2, 32, 16
ROUNDINGS = 16 * 2.0**-23
"""Of a weight, at most 1: two exponentials against one, and the products and quotients of a merge."""


def drawn(*shape: int, name: object) -> Tensor:
    return torch.from_numpy(seeds.generator("large scores", name).normal(size=shape)).float()


def both_weights(rank: int, world: int, backend: str, size: float, layout: Any, has_key_bias: bool) -> float:
    """The largest difference between the weights of both passes; every rank has all of them."""
    mesh = init_device_mesh("cpu", (world,))
    query, key = (drawn(1, HEADS, LENGTH, WIDTH, name=name) for name in "qk")
    unit = torch.eye(LENGTH).expand(1, HEADS, LENGTH, LENGTH)
    options: dict[str, Any] = {"encoding": relattn.AlibiBias(HEADS), "is_causal": True, "layout": layout}
    if has_key_bias:
        bias = drawn(1, HEADS, LENGTH, name="key bias").cumsum(-1) * size
        options["key_bias"] = split(bias, mesh, dim=2, layout=layout)
    own = [split(one, mesh, dim=2, layout=layout) for one in (query * size, key, unit)]
    own[2].requires_grad_()
    with mock.patch.object(ring_schedule, "FEWEST", 3):
        found = context_parallel_attention(*own, mesh=mesh, rotate="ring", backend=backend, **options)  # pyright: ignore[reportCallIssue]
        assert isinstance(found, Tensor)
        (by_values,) = torch.autograd.grad(found, own[2], split(unit, mesh, dim=2, layout=layout))
    weights, again = (join(one.detach(), mesh, dim=2, layout=layout) for one in (found, by_values))
    torch.testing.assert_close(weights.sum(-1), torch.ones(1, HEADS, LENGTH), rtol=0, atol=LENGTH * ROUNDINGS)
    return (weights - again.mT).abs().max().item()


@pytest.mark.one_in(4)
@pytest.mark.parametrize("backend", ["native", "blocks"])
@pytest.mark.parametrize("size", [3e4, 1e7])
def test_both_passes_take_the_same_weights(size: float, backend: str, two: Ranks, four: Ranks) -> None:
    assert max(two(both_weights, 2, backend, size, "zigzag", False)) <= ROUNDINGS
    assert max(two(both_weights, 2, backend, size, "contiguous", True)) <= ROUNDINGS
    assert max(four(both_weights, 4, backend, size, "zigzag", True)) <= ROUNDINGS
