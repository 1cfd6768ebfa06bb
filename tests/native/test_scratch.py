"""Where there is no memory for the kernels' scratch: PyTorch's error, and nothing is written half."""

from typing import Any

import pytest
import torch

from relattn import ShawEmbedding, relative_attention
from relattn.backends.cpu import operator

TOO_MANY = 2**60
"""Floats that no address space holds."""


@pytest.mark.parametrize("queries", [1, 40], ids=["few", "many"])
def test_without_memory_for_scratch_nothing_is_computed(queries: int) -> None:
    encoding = ShawEmbedding(8, 3)
    inputs = [torch.randn(1, 2, n, 8, requires_grad=True) for n in (queries, 40, 40)]
    leaves = [*inputs, *encoding.parameters()]
    given, ran = [leaf.detach().clone() for leaf in leaves], []

    def step() -> torch.Tensor:
        return relative_attention(*inputs, encoding=encoding, backend="native").sin().sum()

    output = step()
    expected = torch.autograd.grad(output, leaves, retain_graph=True)
    found, made = operator.loaded_kernels(), operator.unwritten

    def recorded(name: str) -> Any:
        kernel = getattr(found, name)
        return lambda at: (ran.append(name), kernel(at))

    watched = found._replace(**{name: recorded(name) for name in ("forward", "backward", "few")})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(operator, "loaded_kernels", lambda: watched)
        patch.setattr(operator, "unwritten", lambda floats: made(TOO_MANY))
        with pytest.raises(RuntimeError, match="can't allocate memory"):
            step()
        with pytest.raises(RuntimeError, match="can't allocate memory"), torch.no_grad():
            step()
        with pytest.raises(RuntimeError, match="can't allocate memory"):
            output.backward(retain_graph=True)
    assert ran == []
    assert all(leaf.grad is None and torch.equal(leaf, one) for leaf, one in zip(leaves, given, strict=True))
    again = torch.autograd.grad(output, leaves)
    assert all(torch.equal(one, other) for one, other in zip(again, expected, strict=True))
