"""One graph serves every length: torch.compile with fullgraph and dynamic lengths, and torch.export."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend

from relattn import relative_attention
from tests.contract.calls import MODULES, assert_equal, gradients, self_attention
from tests.contract.subject import INPUTS

pytest_plugins = ["tests.contract.fresh"]

LONGEST = 24
LENGTHS = [(12, 20), (13, 13), (19, 7), (LONGEST, LONGEST)]  # PyTorch takes two lengths that start equal for one
FEW = ("music_transformer", "shaw", "t5", "rope", "txl+shaw+t5")


@pytest.fixture(autouse=True)
def nothing_compiled() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Attention(nn.Module):
    """relative_attention with everything but the inputs fixed."""

    def __init__(self, name: str, rng: np.random.Generator, **fixed: Any):
        super().__init__()
        self.subject = self_attention(name, rng, length=LONGEST, batch=1)
        self.encoding = self.subject.encoding()
        self.fixed = {"is_causal": self.subject.setting.is_causal, "enable_gqa": True, "backend": "tiled"} | fixed

    def forward(self, query: Tensor, key: Tensor, value: Tensor, **tensors: Tensor) -> Tensor:
        return relative_attention(query, key, value, encoding=self.encoding, **self.fixed, **tensors)

    def inputs(self, queries: int, keys: int) -> list[Tensor]:
        """Fresh ones of other lengths."""
        like = [self.subject.arrays[name] for name in INPUTS]
        return [
            torch.randn(*x.shape[:2], length, x.shape[3], dtype=x.dtype, requires_grad=True)
            for x, length in zip(like, (queries, keys, keys), strict=True)
        ]


def assert_one_graph(module: Attention, compiler: str, tensors: Callable[[int, int], dict[str, Any]]) -> None:
    """Nothing is compiled after the first length; answers and gradients are those without compilation."""
    counter = CompileCounterWithBackend(compiler)
    compiled = torch.compile(module, backend=counter, fullgraph=True, dynamic=True)
    graphs = []
    for lengths in LENGTHS:
        inputs, extra = module.inputs(*lengths), tensors(*lengths)
        leaves = [*inputs, *module.parameters()]
        found, expected = ((y, *gradients((y,), leaves)) for y in (f(*inputs, **extra) for f in (compiled, module)))
        assert_equal(found, expected)
        graphs.append(counter.frame_count)
    assert graphs[0] == graphs[-1] > 0, f"{graphs} graphs after as many lengths"


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in FEW else pytest.mark.slow) for n in MODULES])
def test_one_graph_for_every_length(name: str, rng: np.random.Generator) -> None:
    assert_one_graph(Attention(name, rng), "aot_eager", lambda *_: {})


ASKED: dict[str, tuple[dict[str, Any], Callable[[int, int], dict[str, Any]]]] = {
    "window": ({"window": (5, 2)}, lambda *_: {}),
    "starts": ({"query_position": 2, "is_causal": True}, lambda *_: {}),
    "a start as a tensor": ({"is_causal": True}, lambda queries, _: {"query_position": torch.tensor(queries // 5)}),
    "explicit positions": ({}, lambda queries, keys: {
        "query_position": torch.arange(queries), "key_position": torch.arange(keys).flip(0)
    }),
    "key mask": ({}, lambda _, keys: {"key_mask": torch.arange(keys).unsqueeze(0) < keys - 3}),
    "float mask": ({}, lambda queries, keys: {"attn_mask": torch.randn(queries, keys, dtype=torch.float64)}),
}  # fmt: skip


@pytest.mark.parametrize("asked", ASKED)
def test_one_graph_for_every_length_with(asked: str, rng: np.random.Generator) -> None:
    fixed, tensors = ASKED[asked]
    assert_one_graph(Attention("shaw", rng, **fixed), "aot_eager", tensors)


@pytest.mark.slow
@pytest.mark.parametrize("name", FEW)
def test_one_graph_of_generated_code(name: str, rng: np.random.Generator) -> None:
    assert_one_graph(Attention(name, rng), "inductor", lambda *_: {})


def test_compiled_dropout_has_one_mask_in_both_passes(rng: np.random.Generator) -> None:
    """The output is linear in the values, so their gradient says which weights were kept."""
    module = Attention("shaw_keys_only", rng, dropout_p=0.5)
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True, dynamic=True)
    inputs = module.inputs(LONGEST, LONGEST)
    output = compiled(*inputs)
    (by_value,) = torch.autograd.grad(output, inputs[2], output.detach())
    assert_equal((by_value * inputs[2]).sum(), output.square().sum())
    assert (compiled(*inputs) - output).abs().max() > 1e-3, "the next call drops others"


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in FEW else pytest.mark.slow) for n in MODULES])
def test_exported_with_a_dynamic_length(name: str, rng: np.random.Generator) -> None:
    module = Attention(name, rng)
    queries, keys = (torch.export.Dim(which, min=2, max=LONGEST) for which in ("queries", "keys"))
    shapes = {"query": {2: queries}, "key": {2: keys}, "value": {2: keys}}
    exported = torch.export.export(module, tuple(module.inputs(11, 15)), dynamic_shapes=shapes)
    nodes = [node.target for node in exported.graph.nodes if node.op == "call_function"]
    assert nodes.count(torch.ops.relattn.tiled.default) == 1
    for lengths in LENGTHS:
        inputs = module.inputs(*lengths)
        assert_equal(exported.module()(*inputs), module(*inputs))
