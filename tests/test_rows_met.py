"""A table that is longer than the call: no backend gets rows that no visible pair meets."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch.fx.experimental.proxy_tensor import make_fx

from relattn import OffsetTable, RelativeEmbedding, call, relative_attention
from relattn.backends.cpu.inputs import Inputs
from relattn.equation.problem import Problem
from tests.requests import request_of

LONG = 4096
EXPLICIT = torch.tensor([7, 0, 3, 9, 4])


def drawn(queries: int = 5, keys: int = 5) -> tuple[Tensor, Tensor, Tensor]:
    return torch.randn(2, 4, queries, 8), torch.randn(2, 4, keys, 8), torch.randn(2, 4, keys, 8)


def table_of(problem: Problem) -> OffsetTable:
    (axis,) = [axis for axis in problem.axes if axis.relative_keys is not None]
    assert axis.relative_keys is not None
    return axis.relative_keys


@pytest.mark.parametrize(
    ("given", "first", "count"),
    [
        ({"is_causal": True}, -4, 5),
        ({}, -4, 9),
        ({"query_position": 100}, -104, 9),
        ({"window": (2, 1)}, -2, 4),
        ({"query_position": EXPLICIT, "key_position": EXPLICIT}, -9, 19),
        ({"query_position": EXPLICIT, "key_position": EXPLICIT, "is_causal": True}, -9, 10),
        ({"query_position": torch.tensor(100)}, -LONG + 1, 2 * LONG - 1),  # a tensor is not read
    ],
)
def test_the_rows_that_a_call_has(given: dict[str, object], first: int, count: int) -> None:
    table = table_of(request_of(*drawn(), encoding=RelativeEmbedding(8, LONG), **given).problem)
    assert (table.first, table.num_rows) == (first, count)


@pytest.mark.parametrize(("ids", "reach"), [(lambda n: n // 128, 127), (lambda n: n // 128 % 2, 383)])
def test_long_packed_documents_have_the_rows_of_the_longest(ids: Callable[[Tensor], Tensor], reach: int) -> None:
    """Where ids come back, parts that are far apart see each other."""
    packed = [torch.randn(1, 4, 512, 8) for _ in range(3)]
    segments = ids(torch.arange(512))[None]
    table = table_of(request_of(*packed, encoding=RelativeEmbedding(8, LONG), segment_ids=segments).problem)
    assert (table.first, table.num_rows) == (-reach, 2 * reach + 1)


def test_ids_of_a_trace_are_not_read() -> None:
    packed, ids = [torch.randn(1, 4, 512, 8) for _ in range(3)], torch.arange(512)[None] // 128
    encoding = RelativeEmbedding(8, LONG)

    def attend(ids: Tensor) -> Tensor:
        return relative_attention(*packed, encoding=encoding, segment_ids=ids, backend="dense")

    traced = make_fx(attend)(ids)
    for other in (ids, ids % 2):
        torch.testing.assert_close(traced(other), attend(other))


def test_one_query_reads_no_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of decoding has few rows to leave out."""
    monkeypatch.setattr(call, "within_segments", lambda mask: pytest.fail("the ids were read"))
    query, key, value = drawn(1, 2048)
    ids = torch.zeros(2, 1, dtype=torch.int64), torch.arange(2048).expand(2, -1) // 500
    relative_attention(query, key, value, encoding=RelativeEmbedding(8, LONG), segment_ids=ids)


def test_another_axis() -> None:
    where = {"y": EXPLICIT}
    request = request_of(
        *drawn(), encoding=RelativeEmbedding(8, LONG).on("y"), query_position=where, key_position=where
    )
    table = table_of(request.problem)
    assert (table.first, table.num_rows) == (-9, 19)


@pytest.mark.parametrize("backend", ["reference", "dense", "blocks", "native"])
@pytest.mark.parametrize("beyond", ["error", "clamp", "zero"])
@pytest.mark.parametrize(
    "given", [{}, {"query_position": EXPLICIT, "key_position": EXPLICIT}], ids=["from 0", "explicit"]
)
def test_answers_and_gradients_are_those_of_all_rows(backend: str, beyond: str, given: dict[str, Tensor]) -> None:
    """The gradient has the parameter's rows: zeros where no pair meets them."""
    dtype = torch.float32 if backend == "native" else torch.float64
    encoding = RelativeEmbedding(8, 40, num_heads=4, beyond=beyond).to(dtype)
    leaves = [*(tensor.to(dtype).requires_grad_() for tensor in drawn()), encoding.relative_keys]

    def found(backend: str, **positions: Tensor | int) -> list[Tensor]:
        output = relative_attention(*leaves[:3], encoding=encoding, backend=backend, **positions)
        return [output, *torch.autograd.grad(output.square().sum(), leaves)]

    everything = {name: place + 0 for name, place in given.items()} or {"query_position": torch.tensor(0)}
    ours = found(backend, **given)
    assert ours[-1].shape == encoding.relative_keys.shape
    torch.testing.assert_close(ours, found("reference", **everything))


def test_one_token_reads_a_view_of_the_table() -> None:
    """Of all heads: its kernel takes the step from one head to the next, so nothing is copied."""
    encoding = RelativeEmbedding(8, LONG, num_heads=4, causal=True)
    with torch.no_grad():
        problem = request_of(*drawn(1, 100), encoding=encoding, query_position=99, is_causal=True).problem
        table = Inputs.of(problem, few=True).axes[0].relative_keys
    assert table is not None and table.shape == (4, 100, 8)
    assert table.untyped_storage().data_ptr() == encoding.relative_keys.untyped_storage().data_ptr()


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_graph_of_fixed_lengths(dynamic: bool) -> None:
    """Open lengths are not compared with a table's rows: one graph for all of them."""
    encoding, graphs = RelativeEmbedding(8, LONG), CompileCounterWithBackend("eager")

    @torch.compile(backend=graphs, fullgraph=True, dynamic=dynamic)
    def rows(*given: Tensor) -> Tensor:
        return table_of(request_of(*given, encoding=encoding, is_causal=True).problem).values

    for length in (5, 9):
        assert rows(*drawn(length, length)).shape[1] == (2 * LONG - 1 if dynamic else length)
    assert graphs.frame_count == (1 if dynamic else 2)
