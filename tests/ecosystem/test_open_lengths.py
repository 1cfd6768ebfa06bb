"""Every argument under every way to leave sizes open in a graph: one graph serves them all, with eager's numbers.

An argument's sizes are written as letters: B batch, H query heads, G key heads, Q queries, K keys; digits stay.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

from relattn import (
    AlibiBias,
    GridBias,
    GridEmbedding,
    RelativeEmbedding,
    RelativeEncoding,
    ShawEmbedding,
    grid,
    relative_attention,
)
from tests.contract.calls import assert_equal, gradients

pytestmark = pytest.mark.graphs

SIZES = (
    {"B": 3, "H": 4, "G": 2, "Q": 9, "K": 11},
    {"B": 5, "H": 6, "G": 3, "Q": 12, "K": 7},
    {"B": 2, "H": 10, "G": 5, "Q": 33, "K": 33},
)
"""More keys than queries, fewer, and as many. PyTorch takes two sizes that start equal for one."""
FEWEST, MOST = 2, 64
"""The range of every open size, for the way that gives one."""


class Given(NamedTuple):
    """A tensor argument: its sizes as letters and digits, and what makes it."""

    sizes: str
    made: Callable[..., Tensor]

    def tensor(self, sizes: dict[str, int]) -> Tensor:
        return self.made([sizes.get(letter) or int(letter) for letter in self.sizes])


def numbers(sizes: str) -> Given:
    return Given(sizes, lambda shape: torch.randn(shape, dtype=torch.float64))


def most(sizes: str) -> Given:
    return Given(sizes, lambda shape: torch.rand(shape) < 0.9)


def integers(sizes: str) -> Given:
    return Given(sizes, lambda shape: torch.randint(0, 4, shape))


@dataclass(frozen=True)
class Asked:
    """A call: its tensors, its encoding, its other arguments, and those that follow from the lengths."""

    tensors: dict[str, Given]
    encoding: Callable[[], RelativeEncoding] | None = None
    fixed: dict[str, Any] = field(default_factory=dict)
    by_lengths: Callable[[int, int], dict[str, Any]] = lambda queries, keys: {}


def attended(query: str, key: str) -> dict[str, Given]:
    """q, k and v of these axes before the lengths."""
    return {"query": numbers(f"{query}Q6"), "key": numbers(f"{key}K6"), "value": numbers(f"{key}K5")}


QUICK = "starts as tensors and numbers per head"
"""What is tried among the fast tests, in two of the ways."""

ASKED = {
    "nothing": Asked(attended("BH", "BH")),
    "grouped heads": Asked(attended("BH", "BG"), fixed={"enable_gqa": True}),
    QUICK: Asked(
        attended("44", "44")
        | {"sinks": numbers("4"), "key_bias": numbers("44K"), "attn_mask": numbers("QK")}
        | {"query_position": integers(""), "key_position": integers("")},
        lambda: AlibiBias(4),
        {"window": (5, 3)},
    ),
    "masks and numbers per query": Asked(
        attended("BH", "BG")
        | {"sinks": numbers("BHQ"), "key_bias": numbers("1HK"), "attn_mask": most("BHQK"), "key_mask": most("BK")}
        | {"query_ids": integers("BQ"), "key_ids": integers("BK")},
        fixed={"enable_gqa": True, "is_causal": True},
    ),
    "explicit positions": Asked(
        attended("BH", "BH")
        | {"query_position": integers("BQ"), "key_position": integers("K")}
        | {"key_bias": numbers("B1K"), "attn_mask": numbers("HQK")},
        lambda: ShawEmbedding(6, 3, values=False),
        {"softcap": 2.0, "window": (2, 1)},
    ),
    "a start and a window by the lengths": Asked(
        attended("BH", "BH"),
        lambda: RelativeEmbedding(6, max_length=MOST),
        {"is_causal": True},
        lambda queries, keys: {"query_position": keys - queries, "window": (queries // 2, None)},
    ),
}

OF_A_RANGE = "mark_dynamic with a range"
WAYS: dict[str, tuple[bool | None, dict[str, int] | None, int]] = {
    "dynamic=True": (True, None, 1),
    "automatic": (None, None, 2),
    "mark_dynamic": (None, {}, 1),
    OF_A_RANGE: (None, {"min": FEWEST, "max": MOST}, 1),
}
"""torch.compile's `dynamic`, the bounds of marked sizes (None marks none), and the number of graphs for all SIZES."""


@pytest.fixture(autouse=True)
def nothing_compiled() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def function_of(asked: Asked, backend: str) -> tuple[Callable[..., Tensor], list[Tensor]]:
    """The call as a function of its tensors, and the parameters of its encoding."""
    encoding = None if asked.encoding is None else asked.encoding().double()

    def attend(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        query_ids: Tensor | None = None,
        key_ids: Tensor | None = None,
        **more: Any,
    ) -> Tensor:
        segments = None if query_ids is None or key_ids is None else (query_ids, key_ids)
        more |= asked.by_lengths(query.shape[-2], key.shape[-2])
        return relative_attention(
            query, key, value, encoding=encoding, segment_ids=segments, backend=backend, **asked.fixed, **more
        )

    return attend, [] if encoding is None else list(encoding.parameters())


PAIRS = [
    pytest.param(asked, way, marks=[] if asked == QUICK and way == OF_A_RANGE else pytest.mark.slow)
    for asked in ASKED
    for way in WAYS
]


@pytest.mark.parametrize(("asked", "way"), PAIRS)
def test_one_graph(asked: str, way: str) -> None:
    dynamic, bounds, expected = WAYS[way]
    attend, _ = function_of(ASKED[asked], "auto")
    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile(attend, backend=counter, fullgraph=True, dynamic=dynamic)
    for sizes in SIZES:
        tensors = {name: given.tensor(sizes) for name, given in ASKED[asked].tensors.items()}
        answer = attend(**tensors)
        if bounds is not None:
            mark_open(tensors, ASKED[asked].tensors, **bounds)
        assert_equal(compiled(**tensors), answer)
    assert counter.frame_count == expected


def mark_open(tensors: dict[str, Tensor], given: dict[str, Given], **bounds: int) -> None:
    """Every size that is a letter."""
    for name, tensor in tensors.items():
        for axis, size in enumerate(given[name].sizes):
            if size.isalpha():
                torch._dynamo.mark_dynamic(tensor, axis, **bounds)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["dense", "blocks"])
@pytest.mark.parametrize("asked", list(ASKED)[2:])
def test_one_graph_of_both_passes(asked: str, backend: str) -> None:
    """The first two are calls of PyTorch's attention, and the others have what they have."""
    attend, parameters = function_of(ASKED[asked], backend)
    counter = CompileCounterWithBackend("aot_eager")
    compiled, graphs = torch.compile(attend, backend=counter, fullgraph=True, dynamic=True), set()
    for sizes in SIZES:
        tensors = {name: given.tensor(sizes) for name, given in ASKED[asked].tensors.items()}
        moved = [tensor.requires_grad_() for name, tensor in tensors.items() if tensor.is_floating_point()]
        leaves = [*moved, *parameters]
        found, expected = ((y, *gradients((y,), leaves)) for y in (f(**tensors) for f in (compiled, attend)))
        assert_equal(found, expected)
        graphs.add(counter.frame_count)
    assert len(graphs) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("encoding", "backend"),
    [
        pytest.param(GridBias((8, 8), 2), "dense", id="bias"),
        pytest.param(GridEmbedding(4, (8, 8)), "blocks", id="embedding"),
    ],
)
@pytest.mark.parametrize("inside", [False, True], ids=["grid", "sizes"])
def test_one_graph_for_every_image(encoding: RelativeEncoding, backend: str, inside: bool) -> None:
    """The last one fills the table, and a shape that is 8 wide fills one of its axes.

    inside: the grid is made in the graph, from its sizes.
    """
    encoding, counter = encoding.double(), CompileCounterWithBackend("aot_eager")

    def attend(query: Tensor, where: Any) -> Tensor:
        where = grid(*where) if inside else where
        return relative_attention(
            query, query, query, encoding=encoding, query_position=where, key_position=where, backend=backend
        )

    compiled, graphs = torch.compile(attend, backend=counter, fullgraph=True, dynamic=True), set()
    for height, width in ((3, 5), (5, 3), (6, 8), (8, 8)):
        query = torch.randn(3, 2, height * width, 4, dtype=torch.float64, requires_grad=True)
        leaves, where = [query, *encoding.parameters()], (height, width) if inside else grid(height, width)
        found, expected = ((y, *gradients((y,), leaves)) for y in (f(query, where) for f in (compiled, attend)))
        assert_equal(found, expected)
        graphs.add(counter.frame_count)
    assert len(graphs) == 1


@pytest.mark.slow
def test_one_graph_for_more_and_for_fewer_tokens_than_a_table_has_rows() -> None:
    """Explicit positions: an eager call hands on the rows that are met, and compares lengths for it."""
    encoding, counter = ShawEmbedding(4, 8), CompileCounterWithBackend("eager")

    def attend(query: Tensor, where: Tensor) -> Tensor:
        return relative_attention(
            query, query, query, encoding=encoding, query_position=where, key_position=where, backend="dense"
        )

    compiled, graphs = torch.compile(attend, backend=counter, fullgraph=True, dynamic=True), []
    for length in (5, 7, 12, 6):  # 17 rows
        given = torch.randn(3, 2, length, 4), torch.randperm(length)
        torch.testing.assert_close(compiled(*given), attend(*given))
        graphs.append(counter.frame_count)
    assert graphs[0] == graphs[-1] == 1


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["native", pytest.param("blocks", marks=pytest.mark.slow)])
def test_compiled_autograd_has_one_graph(backend: str) -> None:
    """The backward pass of a forward pass that was not compiled, as PyTorch's attention and dense have it."""
    from torch._dynamo import compiled_autograd

    encoding, counter = AlibiBias(2, learned=True), CompileCounterWithBackend("eager")
    query = torch.randn(1, 2, 5, 4, requires_grad=True)
    leaves = [query, *encoding.parameters()]
    output = relative_attention(query, query, query, encoding=encoding, backend=backend)
    expected = torch.autograd.grad(output, leaves, output.detach(), retain_graph=True)
    with compiled_autograd._enable(torch.compile(backend=counter, fullgraph=True)):
        output.backward(output.detach())
    assert_equal([leaf.grad for leaf in leaves], list(expected), rtol=0.0, atol=0.0)
    assert counter.frame_count == 1
