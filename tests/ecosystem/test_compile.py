"""torch.compile with fullgraph and dynamic lengths: one graph serves every length, forward and backward."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from tests.contract.calls import MODULES, assert_equal, gradients
from tests.contract.cases import CASES
from tests.contract.settings import Setting
from tests.ecosystem.layers import (
    CLASSES,
    LENGTHS,
    LONGEST,
    Attention,
    attention,
    every_backend,
    every_kind,
    few_encodings,
    inputs,
    one_class_quickly,
)

pytestmark = pytest.mark.graphs

pytest_plugins = ["tests.contract.fresh"]


@pytest.fixture(autouse=True)
def nothing_compiled() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def assert_one_graph(module: Attention, compiler: str) -> None:
    """Nothing is compiled after the first lengths; answers and gradients are those without compilation."""
    counter = CompileCounterWithBackend(compiler)
    compiled = torch.compile(module, backend=counter, fullgraph=True, dynamic=True)
    graphs = []
    for lengths in LENGTHS:
        given = inputs(*lengths, grad=True)
        leaves = [*given, *module.parameters()]
        found, expected = ((y, *gradients((y,), leaves)) for y in (f(*given) for f in (compiled, module)))
        assert_equal(found, expected)
        graphs.append(counter.frame_count)
    assert graphs[0] == graphs[-1] > 0, f"{graphs} graphs after as many lengths"


def test_every_class_is_compiled() -> None:
    """Their other settings are traced in test_export and test_onnx."""

    def classes(names: Iterable[str]) -> set[type]:
        return {type(part.module) for name in names for part in CASES[name].parts(Setting(1, 4, 4, 5, 5, 6, 6))}

    assert classes(CLASSES) == classes(MODULES)


@one_class_quickly
def test_one_graph_for_every_length(name: str, rng: np.random.Generator) -> None:
    assert_one_graph(attention(name, rng, "blocks"), "aot_eager")


@pytest.mark.slow
@every_kind
def test_one_graph_of_dense_for_every_length(name: str, rng: np.random.Generator) -> None:
    """Every class of encodings is traced above."""
    assert_one_graph(attention(name, rng, "dense"), "aot_eager")


@pytest.mark.slow
@few_encodings
def test_one_graph_of_generated_code(name: str, rng: np.random.Generator) -> None:
    assert_one_graph(attention(name, rng, "auto"), "inductor")


@pytest.mark.slow
@every_backend
def test_dropout_has_one_mask_in_both_passes(backend: str, rng: np.random.Generator) -> None:
    """The output is linear in the values, so their gradient says which weights were kept."""
    module = attention("shaw_keys_only", rng, backend, dropout=0.5, bias=False)
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True, dynamic=True)
    (query,), (key,) = inputs(LONGEST), inputs(LONGEST)
    projection = module.layer.v_proj.weight
    output = compiled(query, key)
    (by_projection,) = torch.autograd.grad(output, projection, output.detach())
    assert_equal((by_projection * projection).sum(), output.square().sum())
    assert (compiled(query, key) - output).abs().max() > 1e-3, "the next call drops others"


def test_few_guards(rng: np.random.Generator) -> None:
    """A compiled call asks each guard before it runs: none about what only calls without a graph read, and none about
    how a record is made that needs none.
    """
    guards: list[str] = []

    def seen(entries: Sequence[Any]) -> list[bool]:
        guards.extend(entry.name for entry in entries)
        return [True] * len(entries)

    module = attention("shaw_keys_only", rng)
    torch.compile(module, backend="eager", fullgraph=True, options={"guard_filter_fn": seen})(*inputs(5, 5))
    assert any("relattn" in guard for guard in guards)
    for word in ("_read_of_call", "is_watched", "jit", "Options.__", "Request.__", "Mask.__", "_Diagonals.__"):
        assert not [guard for guard in guards if word in guard]
