"""What "auto" takes under torch.compile, and what a compiled rotation computes once."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch.fx import GraphModule

import relattn
from relattn.encodings.base import RelativeEncoding

pytestmark = pytest.mark.graphs


@pytest.fixture(autouse=True)
def nothing_compiled() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def graph_of(encoding: RelativeEncoding | None, length: int, *, dynamic: bool | None = None) -> str:
    """The graph of a causal call with 8 heads, as text."""
    seen: list[str] = []

    def read(graph: GraphModule, inputs: list[torch.Tensor]) -> Callable[..., object]:
        seen.append(graph.code)
        return graph.forward

    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return relattn.relative_attention(q, k, v, encoding=encoding, is_causal=True)

    tensors = torch.randn(3, 1, 8, length, 16).unbind(0)
    with torch.no_grad():
        found = torch.compile(call, backend=read, fullgraph=True, dynamic=dynamic)(*tensors)
        torch.testing.assert_close(found, call(*tensors), atol=2e-6, rtol=2e-6)
    return seen[0]


@pytest.mark.slow
@pytest.mark.parametrize(("length", "dynamic", "native"), [(32, None, False), (128, None, True), (32, True, True)])
def test_tables_take_native_from_a_length_on_and_for_open_lengths(
    length: int, dynamic: bool | None, native: bool
) -> None:
    graph = graph_of(relattn.T5Bias(8, bidirectional=False), length, dynamic=dynamic)
    assert ("relattn.native" in graph) is native


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("length", "native"), [(32, False), (256, True)])
def test_calls_without_tables_take_what_an_eager_call_takes(length: int, native: bool) -> None:
    graph = graph_of(None, length)
    assert ("relattn.native" in graph) is native


def test_a_rotation_writes_its_tables_down() -> None:
    """Both are read through strides, before heads and features multiply them."""
    assert graph_of(relattn.RotaryEmbedding(16), 32).count("as_strided") == 4  # cos and sin of queries and of keys
