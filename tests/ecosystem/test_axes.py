"""Layers whose encodings stand on a grid, in PyTorch's own tools: compiled, exported, copied, differentiated twice."""

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.func import functional_call, grad, hessian, vmap
from torch.utils.checkpoint import checkpoint

from relattn import (
    GridBias,
    GridEmbedding,
    LogGridBias,
    RelativeEmbedding,
    RelativeEncoding,
    RotaryEmbedding,
    ShawEmbedding,
    T5Bias,
    TransformerXLEmbedding,
    grid,
)
from relattn.nn import RelativeMultiheadAttention
from tests.contract.calls import assert_equal, gradients
from tests.oracle import assert_within_budget, max_error

HEADS, HEAD_DIM, WIDTH = 2, 4, 6
SIZES, PREFIX_TOKENS = (2, 3), 1
LENGTH = PREFIX_TOKENS + 6

ENCODINGS = {
    "grid_bias": lambda: GridBias(SIZES, HEADS, extra=3),
    "grid_embedding": lambda: GridEmbedding(HEAD_DIM, SIZES),
    "log_grid": lambda: LogGridBias(SIZES, HEADS, hidden=3),
    "decomposed": lambda: RelativeEmbedding(HEAD_DIM, 2).on("y") + RelativeEmbedding(HEAD_DIM, 3).on("x"),
    "rope": lambda: RotaryEmbedding(HEAD_DIM).on("x"),
    "all": lambda: (
        RelativeEmbedding(HEAD_DIM, 8)
        + GridBias((3, 3), HEADS, extra=3)
        + ShawEmbedding(HEAD_DIM, 1).on("y")
        + TransformerXLEmbedding(HEADS, HEAD_DIM).on("x")
        + T5Bias(HEADS, num_buckets=4, max_distance=4).on("x")
    ),
}
every_encoding = pytest.mark.parametrize("name", ENCODINGS)
every_backend = pytest.mark.parametrize("backend", ["dense", "blocks"])


class OnAGrid(nn.Module):
    """A layer over the tokens of a grid, behind a class token; float64 unless changed."""

    def __init__(self, encoding: RelativeEncoding, backend: str = "dense"):
        super().__init__()
        self.layer = RelativeMultiheadAttention(WIDTH, HEADS, encoding, head_dim=HEAD_DIM, backend=backend).double()
        with torch.no_grad():
            for parameter in self.layer.encoding.parameters():
                parameter.normal_()

    def forward(self, x: Tensor) -> Tensor:
        where = grid(*SIZES, prefix_tokens=PREFIX_TOKENS)
        return self.layer(x, query_position=where, key_position=where)


class WithLists(OnAGrid):
    """The same over positions that come with the call."""

    def forward(self, x: Tensor, y_of: Tensor, x_of: Tensor) -> Tensor:
        where = {"y": y_of, "x": x_of}
        return self.layer(x, query_position=where, key_position=where)


def inputs(batch: int = 2, **keywords: Any) -> Tensor:
    return torch.randn(batch, LENGTH, WIDTH, **{"dtype": torch.float64, **keywords})


def weights_of(module: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach() for name, parameter in module.named_parameters()}


@pytest.mark.graphs
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "backend"), [*((name, "blocks") for name in ENCODINGS), ("grid_bias", "dense"), ("all", "dense")]
)
def test_compiled_in_one_graph_for_every_batch(name: str, backend: str) -> None:
    torch._dynamo.reset()
    module = OnAGrid(ENCODINGS[name](), backend)
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(module, backend=counter, fullgraph=True, dynamic=True)
    graphs = []
    for batch in (5, 3, 9):
        x = inputs(batch, requires_grad=True)
        leaves = [x, *module.parameters()]
        found, expected = ((y, *gradients((y,), leaves)) for y in (compiled(x), module(x)))
        assert_equal(found, expected)
        graphs.append(counter.frame_count)
    assert graphs[0] == graphs[-1] > 0, f"{graphs} graphs after as many batches"
    torch._dynamo.reset()


@pytest.mark.slow
@pytest.mark.graphs
@every_backend
def test_compiled_with_explicit_positions(backend: str) -> None:
    """Positions that come with the call, for tables that have an end."""
    torch._dynamo.reset()
    encoding = T5Bias(HEADS, num_buckets=4, max_distance=4).on("y") + ShawEmbedding(HEAD_DIM, 1).on("x")
    module = WithLists(encoding, backend)
    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile(module, backend=counter, fullgraph=True, dynamic=True)
    for batch in (5, 3):
        given = inputs(batch), *torch.randint(0, 5, (2, batch, LENGTH)).unbind(0)
        assert_equal(compiled(*given), module(*given))
    assert counter.frame_count == 1
    torch._dynamo.reset()


@pytest.mark.slow
@pytest.mark.graphs
@every_backend
@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n == "all" else pytest.mark.slow) for n in ENCODINGS])
def test_exported(name: str, backend: str) -> None:
    """The program of one batch serves any other."""
    module = OnAGrid(ENCODINGS[name](), backend)
    program = torch.export.export(module, (inputs(),), dynamic_shapes={"x": {0: torch.export.Dim("batch", max=9)}})
    nodes = [node.target for node in program.graph.nodes if node.op == "call_function"]
    assert nodes.count(torch.ops.relattn.blocks.default) == (backend == "blocks")
    for batch in (1, 4):
        x = inputs(batch)
        assert_equal(program.module()(x), module(x))


@pytest.mark.graphs
def test_exported_with_lists_for_tables_that_have_an_end() -> None:
    encoding = RelativeEmbedding(HEAD_DIM, 3, beyond="clamp").on("y") + ShawEmbedding(HEAD_DIM, 1).on("x")
    module = WithLists(encoding)
    places = torch.arange(LENGTH) // 3, torch.arange(LENGTH) % 3
    program = torch.export.export(module, (inputs(), *places))
    others = torch.randint(0, 5, (2, LENGTH)).unbind(0)
    x = inputs()
    assert_equal(program.module()(x, *others), module(x, *others))


@every_backend
@every_encoding
def test_functional_calls(name: str, backend: str) -> None:
    module, other, x = OnAGrid(ENCODINGS[name](), backend), OnAGrid(ENCODINGS[name](), backend), inputs()
    assert_equal(functional_call(module, weights_of(other), (x,)), other(x).detach())


@every_encoding
def test_transforms(name: str) -> None:
    """grad, vmap over weights, and second derivatives by dense."""
    module, x = OnAGrid(ENCODINGS[name]()), inputs()

    def loss(weights: dict[str, Tensor]) -> Tensor:
        return functional_call(module, weights, (x,)).square().sum()

    found = grad(loss)(weights_of(module))
    module(x).square().sum().backward()
    assert_equal(found, {name: parameter.grad for name, parameter in module.named_parameters()})
    members = [weights_of(OnAGrid(ENCODINGS[name]())) for _ in range(3)]
    stacked = {key: torch.stack([member[key] for member in members]) for key in members[0]}
    batched = vmap(lambda weights: functional_call(module, weights, (x,)))(stacked)
    assert_equal(batched, torch.stack([functional_call(module, member, (x,)) for member in members]))
    bias = "layer.out_proj.bias"
    second = hessian(lambda b: loss({**weights_of(module), bias: b}))(module.layer.out_proj.bias.detach())
    assert_equal(second, 2.0 * x.shape[0] * x.shape[1] * torch.eye(WIDTH, dtype=torch.float64))


@pytest.mark.one_in(6)
@every_encoding
def test_second_derivatives_of_dense(name: str) -> None:
    module, x = OnAGrid(ENCODINGS[name]()), inputs(1)
    parameters = weights_of(module.layer.encoding)

    def run(x: Tensor, *tables: Tensor) -> Tensor:
        given = {f"layer.encoding.{key}": table for key, table in zip(parameters, tables, strict=True)}
        return functional_call(module, {**weights_of(module), **given}, (x,))

    leaves = (x.requires_grad_(), *(table.requires_grad_() for table in parameters.values()))
    assert torch.autograd.gradcheck(run, leaves, fast_mode=True)
    assert torch.autograd.gradgradcheck(run, leaves, fast_mode=True)


@every_backend
@every_encoding
def test_autocast(name: str, backend: str) -> None:
    """As far from float64 as the module in bfloat16 may be; parameters keep their dtype, and so do their gradients."""
    module = OnAGrid(ENCODINGS[name](), backend).float()
    x = inputs(dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        found = module(x)
    found.float().square().sum().backward()
    assert found.dtype == torch.bfloat16
    assert all(parameter.grad.dtype == torch.float32 for parameter in module.parameters())
    with torch.no_grad():
        plain = copy.deepcopy(module).bfloat16()(x.bfloat16()).double().numpy()
        truth = copy.deepcopy(module).double()(x.double()).numpy()
    terms = 2 * WIDTH + 2 * HEADS * HEAD_DIM + LENGTH
    found = found.detach().double().numpy()
    assert_within_budget(found, truth, max_error(plain, truth), terms, "bfloat16", name)


@every_backend
@every_encoding
def test_checkpointed(name: str, backend: str) -> None:
    module, x = OnAGrid(ENCODINGS[name](), backend), inputs(requires_grad=True)
    leaves = [x, *module.parameters()]
    expected = gradients((module(x),), leaves)
    found = gradients((checkpoint(module, x, use_reentrant=False),), leaves)
    assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))


@every_encoding
def test_copies(name: str) -> None:
    """And the names of the parameters: of `.on` below `encoding.`."""
    module, x = OnAGrid(ENCODINGS[name]()), inputs()
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(other(x), module(x))
        assert repr(other) == repr(module)
    fresh = OnAGrid(ENCODINGS[name]())
    fresh.load_state_dict(module.state_dict())
    assert torch.equal(fresh(x), module(x))


def test_on_shares_the_parameters() -> None:
    encoding = RelativeEmbedding(HEAD_DIM, 3)
    moved = encoding.on("y")
    assert moved.encoding is encoding
    assert list(moved.state_dict()) == ["encoding.relative_keys"]
    assert "axis='y'" in repr(moved)
    both = encoding.on("y") + encoding.on("x")
    assert len(list(both.parameters())) == 1
