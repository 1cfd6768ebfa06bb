"""torch.func through a module: weights given by the call, gradients by them, and batches of them, all in float64."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import functional_call, grad, hessian, vmap

from relattn import UnsupportedError
from relattn.backends import select
from tests.bad_input.refusal import refused
from tests.contract.calls import assert_equal
from tests.ecosystem.layers import (
    WIDTH,
    Attention,
    attention,
    axisless,
    every_backend,
    every_encoding,
    few_encodings,
    inputs,
)

pytestmark = pytest.mark.one_in(8)

pytest_plugins = ["tests.contract.fresh"]

Weights = dict[str, Tensor]


def weights_of(module: Attention) -> Weights:
    return {name: parameter.detach() for name, parameter in module.named_parameters()}


def loss(weights: Weights, module: Attention, query: Tensor, **more: Any) -> Tensor:
    return functional_call(module, weights, (query,), more).square().sum()


@every_backend
@every_encoding
def test_the_call_s_weights_are_the_module_s(name: str, backend: str, rng: np.random.Generator) -> None:
    module, other = attention(name, rng, backend), attention(name, rng, backend)
    (query,) = inputs(9)
    before = module(query)
    assert_equal(functional_call(module, weights_of(other), (query,)), other(query).detach())
    assert torch.equal(module(query), before)


@every_encoding
def test_gradients_by_the_weights(name: str, rng: np.random.Generator) -> None:
    module = attention(name, rng)
    (query,) = inputs(9)
    found = grad(loss)(weights_of(module), module, query)
    module(query).square().sum().backward()
    assert_equal(found, {name: parameter.grad for name, parameter in module.named_parameters()})


@every_encoding
def test_a_batch_of_weights(name: str, rng: np.random.Generator) -> None:
    """An ensemble: as each member by itself."""
    module, (query,) = attention(name, rng), inputs(9)
    members = [weights_of(attention(name, rng)) for _ in range(3)]
    stacked = {key: torch.stack([member[key] for member in members]) for key in members[0]}
    found = vmap(lambda weights: functional_call(module, weights, (query,)))(stacked)
    assert_equal(found, torch.stack([functional_call(module, member, (query,)) for member in members]))


@every_encoding
def test_a_batch_of_the_encoding_s_weights(name: str, rng: np.random.Generator) -> None:
    """The others are the module's own: what is added to the scores is batched, and the scores are not."""
    module, (query,) = attention(name, rng), inputs(9)
    members = [
        {key: weight for key, weight in weights_of(attention(name, rng)).items() if ".encoding." in key}
        for _ in range(3)
    ]
    if not members[0]:  # nothing to batch: a rotation and slopes have no weights
        return
    stacked = {key: torch.stack([member[key] for member in members]) for key in members[0]}
    found = vmap(lambda weights: functional_call(module, weights, (query,)))(stacked)
    assert_equal(found, torch.stack([functional_call(module, member, (query,)) for member in members]))


def test_a_batch_of_masks(rng: np.random.Generator) -> None:
    module, (query,) = attention("shaw", rng), inputs(9)
    masks = torch.stack([torch.arange(9).expand(2, -1) < kept for kept in (3, 7, 9)])
    found = vmap(lambda mask: module(query, None, mask))(masks)
    assert_equal(found, torch.stack([module(query, None, mask) for mask in masks]))


def test_a_batch_of_key_biases_and_sinks(rng: np.random.Generator) -> None:
    """Each alone, as the calls by themselves; and their gradients."""
    module, (query,) = attention("shaw", rng, fixed={"softcap": 2.0, "is_causal": True}), inputs(9)
    several = [axisless(9, 9) for _ in range(3)]
    stacked = {name: torch.stack([one[name] for one in several]) for name in several[0]}
    for name in stacked:
        others = {other: tensor for other, tensor in several[0].items() if other != name}

        def call(tensor: Tensor, name: str = name, others: dict[str, Tensor] = others) -> Tensor:
            return module(query, None, **{name: tensor}, **others)

        assert_equal(vmap(call)(stacked[name]), torch.stack([call(one[name]) for one in several]))
        found = vmap(grad(lambda tensor, call=call: call(tensor).square().sum()))(stacked[name])
        leaves = [one[name].requires_grad_() for one in several]
        assert_equal(found, torch.stack([torch.autograd.grad(call(x).square().sum(), x)[0] for x in leaves]))


@every_encoding
def test_gradients_of_each_sample(name: str, rng: np.random.Generator) -> None:
    module, (query,) = attention(name, rng), inputs(9)
    weights = weights_of(module)
    found = vmap(grad(lambda w, x: loss(w, module, x.unsqueeze(0))), in_dims=(None, 0))(weights, query)
    each = [grad(loss)(weights, module, sample.unsqueeze(0)) for sample in query]
    assert_equal(found, {key: torch.stack([one[key] for one in each]) for key in weights})


@every_encoding
def test_explicit_positions(name: str, rng: np.random.Generator) -> None:
    """Gradients by the weights, and of each sample, are those without positions, which are 0, 1, 2, ..."""
    module, (query,) = attention(name, rng), inputs(9)
    weights, positions = weights_of(module), torch.arange(9)
    explicit = {"query_position": positions, "key_position": positions}
    assert_equal(grad(loss)(weights, module, query, **explicit), grad(loss)(weights, module, query))
    found = vmap(grad(lambda w, x: loss(w, module, x.unsqueeze(0), **explicit)), in_dims=(None, 0))(weights, query)
    each = [grad(loss)(weights, module, sample.unsqueeze(0)) for sample in query]
    assert_equal(found, {key: torch.stack([one[key] for one in each]) for key in weights})


@few_encodings
def test_a_hessian(name: str, rng: np.random.Generator) -> None:
    """Forward over reverse: against reverse over reverse."""
    module, (query,) = attention(name, rng), inputs(3, batch=1)
    weights = weights_of(module)
    found = hessian(lambda x: loss(weights, module, x))(query)
    assert_equal(found, torch.autograd.functional.hessian(lambda x: loss(weights, module, x), query))


@pytest.mark.parametrize("transform", [vmap, grad])
def test_blocks_says_that_it_cannot_and_auto_knows(
    transform: Callable, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No call is small here, so that "auto" would take blocks."""
    for few in ("FEW_PAIRS", "FEW_PAIRS_PER_ELEMENT", "FEW_QUERIES"):
        monkeypatch.setattr(select, few, 0)
    module, (query,) = attention("shaw", rng, "blocks"), inputs(9)
    said = "backend='blocks' cannot run this: it does not run under vmap, grad and the other transforms of torch.func; "
    with refused(UnsupportedError, said + "use 'dense' or 'reference'"):
        transform(lambda x: module(x.reshape(-1, 9, WIDTH)).sum())(query)
    module.layer.backend = "auto"
    transform(lambda x: module(x.reshape(-1, 9, WIDTH)).sum())(query)
