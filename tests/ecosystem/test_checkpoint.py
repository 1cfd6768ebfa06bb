"""Activation checkpointing: what is computed again is what was computed, dropout included."""

import numpy as np
import pytest
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from tests import seeds
from tests.contract.calls import assert_equal
from tests.ecosystem.layers import Attention, attention, every_encoding, inputs

pytestmark = pytest.mark.one_in(8)

pytest_plugins = ["tests.contract.fresh"]


def step(module: Attention, query: Tensor, reentrant: bool | None) -> list[Tensor]:
    """The output of two applications, and every gradient; reentrant: how they are checkpointed, None not at all."""
    seeds.start_torch(5)
    module.zero_grad()
    query = query.clone().requires_grad_()
    hidden = query
    for _ in range(2):
        hidden = module(hidden) if reentrant is None else checkpoint(module, hidden, use_reentrant=reentrant)
    hidden.square().sum().backward()
    return [hidden, query.grad, *(parameter.grad for parameter in module.parameters())]


def assert_the_same_gradients(module: Attention, reentrant: bool) -> None:
    """With checkpointing and without, by a module that drops weights."""
    module.train()
    (query,) = inputs(9)
    whole, again = (step(module, query, how) for how in (None, reentrant))
    assert_equal(again, whole)
    undropped = step(module.eval(), query, None)
    assert (whole[0] - undropped[0]).abs().max() > 1e-3


@pytest.mark.pairs
@pytest.mark.parametrize("backend", ["auto", "blocks"])
@pytest.mark.parametrize("reentrant", [True, False])
@every_encoding
def test_the_same_gradients(name: str, reentrant: bool, backend: str, rng: np.random.Generator) -> None:
    assert_the_same_gradients(attention(name, rng, backend, dropout=0.4), reentrant)
