"""torch.compile with fullgraph and dynamic lengths: one graph serves every length, forward and backward."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from tests.contract.calls import assert_equal, gradients
from tests.ecosystem.layers import (
    FEW,
    LENGTHS,
    LONGEST,
    Attention,
    attention,
    every_backend,
    every_traced_encoding_slowly,
    few_encodings,
    inputs,
    of_no_axis,
)

pytestmark = pytest.mark.graphs

pytest_plugins = ["tests.contract.fresh"]


@pytest.fixture(autouse=True)
def nothing_compiled() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


LENGTHS_FOR = {"dense": [(12, 20), (13, 19), (7, LONGEST)], "tiled": LENGTHS}
"""Dense lays its strip out in another way where there are more queries than keys, or as many: a graph for each way."""


def nothing_more(queries: int, keys: int) -> dict[str, Any]:
    return {}


def assert_one_graph(
    module: Attention, compiler: str, tensors: Callable[[int, int], dict[str, Any]] = nothing_more
) -> None:
    """Nothing is compiled after the first lengths; answers and gradients are those without compilation."""
    counter = CompileCounterWithBackend(compiler)
    compiled = torch.compile(module, backend=counter, fullgraph=True, dynamic=True)
    graphs = []
    for lengths in LENGTHS_FOR.get(module.layer.backend, LENGTHS):
        given, more = inputs(*lengths, grad=True), tensors(*lengths)
        leaves = [*given, *module.parameters()]
        found, expected = ((y, *gradients((y,), leaves)) for y in (f(*given, **more) for f in (compiled, module)))
        assert_equal(found, expected)
        graphs.append(counter.frame_count)
    assert graphs[0] == graphs[-1] > 0, f"{graphs} graphs after as many lengths"


@every_traced_encoding_slowly
def test_one_graph_for_every_length(name: str, rng: np.random.Generator) -> None:
    assert_one_graph(attention(name, rng, "tiled"), "aot_eager")


@pytest.mark.slow
@pytest.mark.parametrize("name", [*FEW, "shaw_per_head", "clamp+zero", "disentangled", "function"])
def test_one_graph_of_dense_for_every_length(name: str, rng: np.random.Generator) -> None:
    """Every encoding's own code is traced above; between them these have every kind of table, edge and rewriting."""
    assert_one_graph(attention(name, rng, "dense"), "aot_eager")


def test_dense_has_a_graph_for_each_order_of_the_lengths(rng: np.random.Generator) -> None:
    """More of the same order compile nothing."""
    module, counter = attention("shaw", rng), CompileCounterWithBackend("eager")
    compiled = torch.compile(module, backend=counter, fullgraph=True, dynamic=True)
    graphs = []
    for lengths in [*LENGTHS, *((keys, queries) for queries, keys in LENGTHS), (2, 3), (5, 5), (3, 2)]:
        given = inputs(*lengths)
        assert_equal(compiled(*given), module(*given))
        graphs.append(counter.frame_count)
    assert graphs[len(LENGTHS) - 1] == graphs[-1] <= 3, f"{graphs} graphs after as many lengths"


@pytest.mark.slow
@few_encodings
def test_one_graph_of_generated_code(name: str, rng: np.random.Generator) -> None:
    assert_one_graph(attention(name, rng, "auto"), "inductor")


ASKED: dict[str, tuple[dict[str, Any], Callable[[int, int], dict[str, Any]]]] = {
    "window": ({"window": (5, 2)}, nothing_more),
    "starts": ({"query_position": 2, "is_causal": True}, nothing_more),
    "a start as a tensor": ({"is_causal": True}, lambda queries, _: {"query_position": torch.tensor(queries // 5)}),
    "explicit positions": ({}, lambda queries, keys: {
        "query_position": torch.arange(queries), "key_position": torch.arange(keys).flip(0)
    }),
    "key mask": ({}, lambda _, keys: {"key_mask": torch.arange(keys).expand(2, -1) < keys - 3}),
    "key bias, sinks and a cap": ({"softcap": 2.0}, of_no_axis),
    "a key bias under causality": ({"is_causal": True}, of_no_axis),
    "float mask": ({}, lambda queries, keys: {"attn_mask": torch.randn(queries, keys, dtype=torch.float64)}),
}  # fmt: skip


BY_DENSE = ("window", "a start as a tensor", "explicit positions", "float mask", "key bias, sinks and a cap")
"""One of each sort: limits, positions that only the call knows, masks, and scores that are changed."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("asked", "backend"), [*((asked, "tiled") for asked in ASKED), *((asked, "dense") for asked in BY_DENSE)]
)
def test_one_graph_for_every_length_with(asked: str, backend: str, rng: np.random.Generator) -> None:
    fixed, tensors = ASKED[asked]
    assert_one_graph(attention("shaw", rng, backend, fixed=fixed), "aot_eager", tensors)


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
