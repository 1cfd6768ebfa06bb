"""RelPositionMultiHeadedAttention through what the other tests here put RelativeMultiheadAttention through.

Its encoding has no parameters of its own and reads the layer's, wherever those come from.
"""

from typing import Any

import numpy as np
import pytest
import torch
from torch.func import functional_call, grad, vmap

from relattn.nn import RelPositionMultiHeadedAttention
from tests.contract.calls import assert_equal
from tests.contract.cases import txl
from tests.contract.settings import Setting
from tests.contract.subject import Subject
from tests.ecosystem.layers import LONGEST, WIDTH, Attention, every_backend, inputs
from tests.ecosystem.test_autocast import assert_errs_like_the_formula
from tests.ecosystem.test_checkpoint import assert_the_same_gradients
from tests.ecosystem.test_compile import assert_one_graph, nothing_compiled  # noqa: F401  (a fixture)
from tests.ecosystem.test_copies import COPIES, assert_copied, assert_saved
from tests.ecosystem.test_export import assert_exported
from tests.ecosystem.test_functional_call import loss, weights_of

pytest_plugins = ["tests.contract.fresh"]

HEADS = 2


def conformer(backend: str = "dense", **options: Any) -> Attention:
    """A module with that layer, random everywhere: u and v start at zero."""
    layer = RelPositionMultiHeadedAttention(WIDTH, HEADS, backend=backend, **options)
    for bias in (layer.pos_bias_u, layer.pos_bias_v):
        torch.nn.init.normal_(bias)
    return Attention(layer)


@pytest.mark.parametrize("way", COPIES)
def test_a_copy_gives_the_same_numbers_and_is_its_own(way: str, rng: np.random.Generator) -> None:
    assert_copied(way, conformer("auto"))


def test_weights_through_a_file(rng: np.random.Generator) -> None:
    assert_saved(conformer(), conformer())


@every_backend
@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing(reentrant: bool, backend: str, rng: np.random.Generator) -> None:
    assert_the_same_gradients(conformer(backend, dropout=0.4), reentrant)


@every_backend
def test_the_call_s_weights_are_the_module_s(backend: str, rng: np.random.Generator) -> None:
    module, other, (query,) = conformer(backend), conformer(backend), inputs(9)
    before = module(query)
    assert_equal(functional_call(module, weights_of(other), (query,)), other(query).detach())
    assert torch.equal(module(query), before)


def test_gradients_by_weights_and_of_batches_of_them(rng: np.random.Generator) -> None:
    """Gradients by the call's weights, those of each sample, and the outputs of an ensemble."""
    module, (query,) = conformer(), inputs(9)
    weights = weights_of(module)
    by_weights = grad(loss)(weights, module, query)
    module(query).square().sum().backward()
    assert_equal(by_weights, {name: parameter.grad for name, parameter in module.named_parameters()})

    of_samples = vmap(grad(lambda w, x: loss(w, module, x.unsqueeze(0))), in_dims=(None, 0))(weights, query)
    assert_equal({name: each.sum(0) for name, each in of_samples.items()}, by_weights)

    members = [weights_of(conformer()) for _ in range(3)]
    stacked = {name: torch.stack([member[name] for member in members]) for name in weights}
    outputs = vmap(lambda member: functional_call(module, member, (query,)))(stacked)
    assert_equal(outputs, torch.stack([functional_call(module, member, (query,)) for member in members]))


@pytest.mark.one_in(2)
@every_backend
@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float16", marks=pytest.mark.slow)])
def test_autocast(dtype: str, backend: str, rng: np.random.Generator) -> None:
    setting = Setting(2, HEADS, HEADS, LONGEST, LONGEST, WIDTH // HEADS, WIDTH // HEADS)

    def draw() -> tuple[Attention, Subject]:
        module = conformer(backend)
        own = {f"0.{name}": parameter for name, parameter in module.layer.named_parameters()}
        return module, Subject(setting, own, [txl(setting, embed_dim=WIDTH, interleaved=True)])

    assert_errs_like_the_formula(draw, getattr(torch, dtype))


@pytest.mark.graphs
@pytest.mark.parametrize(
    ("backend", "compiler"),
    [
        pytest.param("dense", "aot_eager", marks=pytest.mark.slow),
        pytest.param("blocks", "aot_eager", marks=pytest.mark.slow),
        pytest.param("auto", "inductor", marks=pytest.mark.slow),
    ],
)
def test_one_graph_for_every_length(backend: str, compiler: str, rng: np.random.Generator) -> None:
    assert_one_graph(conformer(backend), compiler)


@pytest.mark.graphs
@pytest.mark.slow
@every_backend
def test_exported_with_open_lengths(backend: str, rng: np.random.Generator) -> None:
    assert_exported(conformer(backend))
