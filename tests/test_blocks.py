"""What a softmax in blocks can get wrong; the blocks that the backend itself chooses, and what these leave out."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import relattn
from relattn import attention_and_lse, explain, relative_attention
from relattn.backends import blocks
from tests.contract.blocks import TESTED_BACKENDS

pytest_plugins = ["tests.contract.fresh"]

LENGTH = 6
UNIVERSAL = [backend for backend in TESTED_BACKENDS if backend != "sdpa"]
everywhere = pytest.mark.parametrize("backend", UNIVERSAL, indirect=True)


def inputs(length: int = LENGTH) -> list[Tensor]:
    """Query, key and value of two heads."""
    return [torch.randn(1, 2, length, 4).requires_grad_() for _ in range(3)]


SWALLOWING = (torch.finfo(torch.float32).min, -1e20)


@everywhere
@pytest.mark.parametrize("constant", SWALLOWING)
def test_a_number_that_swallows_a_rows_scores_leaves_it_uniform(backend: str, constant: float, rng) -> None:
    hold_a_swallowed_row_uniform(backend, constant)


def hold_a_swallowed_row_uniform(backend: str, constant: float, length: int = LENGTH) -> None:
    """Hugging Face's masks hold the lowest number of the dtype, in whole rows too: it hides nothing there."""
    tensors, mask = inputs(length), torch.zeros(1, 1, length, length)
    mask[0, 0, 2] = constant
    output = relative_attention(*tensors, attn_mask=mask, backend=backend)
    with torch.no_grad():
        alone = relative_attention(*tensors, attn_mask=mask, backend=backend)
    for found in (output, alone):
        torch.testing.assert_close(found[:, :, 2], tensors[2].mean(dim=2))
    upstream = torch.zeros_like(output)
    upstream[:, :, 2] = 1.0
    by_query, by_key, by_value = torch.autograd.grad(output, tensors, upstream)
    torch.testing.assert_close(by_value, torch.full_like(by_value, 1.0 / length))
    query, key, value = tensors
    weight_gradient = value.sum(dim=3) - value.sum(dim=3).mean(dim=2, keepdim=True)
    row = torch.einsum("bhj,bhjd->bhd", weight_gradient, key) / (length * 2.0)  # scale 1 / 2
    torch.testing.assert_close(by_query[:, :, 2], row, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        by_key, torch.einsum("bhj,bhd->bhjd", weight_gradient, query[:, :, 2]) / (length * 2.0), rtol=1e-4, atol=1e-5
    )


@everywhere
def test_a_gradient_that_is_no_number_stops_at_a_row_that_sees_nothing(backend: str, rng) -> None:
    tensors = inputs()
    output, lse = attention_and_lse(
        *tensors, is_causal=True, key_position=2, backend=backend, encoding=relattn.ShawEmbedding(4, 2)
    )
    dead = lse == -torch.inf
    assert dead.any()
    upstream = torch.ones_like(output).masked_fill(dead.unsqueeze(3), torch.nan)
    gradients = torch.autograd.grad(
        (output, lse), tensors, (upstream, torch.ones_like(lse).masked_fill(dead, torch.nan))
    )
    assert all(gradient.isfinite().all() for gradient in gradients)


HIDING: dict[str, dict[str, Any]] = {
    "the future": {"is_causal": True},
    "a key mask": {"key_mask": torch.arange(LENGTH)[None] != LENGTH - 1},
    "segments": {"segment_ids": (torch.arange(LENGTH)[None] == LENGTH - 1).long()},
    "a boolean mask": {"attn_mask": (torch.arange(LENGTH) != LENGTH - 1)[None, None, None]},
}


@everywhere
@pytest.mark.parametrize("number", [torch.nan, torch.inf])
@pytest.mark.parametrize("hidden_by", HIDING)
def test_a_hidden_key_that_is_no_number_reaches_nobody(hidden_by: str, number: float, backend: str, rng) -> None:
    """The last key is garbage, as an unwritten place of a buffer; no other query sees it."""
    query, key, value = (tensor.detach() for tensor in inputs())
    clean = relative_attention(query, key, value, **HIDING[hidden_by], backend=backend)
    key[:, :, -1] = number
    output = relative_attention(query, key, value, **HIDING[hidden_by], backend=backend)
    torch.testing.assert_close(output[:, :, :-1], clean[:, :, :-1])


@everywhere
def test_values_may_have_no_width(backend: str, rng) -> None:
    query, key, value = inputs()
    assert relative_attention(query, key, value[..., :0], backend=backend).shape == (1, 2, LENGTH, 0)


@pytest.mark.graphs
def test_the_gradient_of_a_mask_lies_as_the_compiler_is_told(rng) -> None:
    tensors = inputs()
    mask = torch.randn(LENGTH, LENGTH).t().requires_grad_()

    @torch.compile(backend="aot_eager", fullgraph=True)
    def compiled(*arguments: Tensor) -> Tensor:
        return relative_attention(*arguments, backend="blocks")

    expected = torch.autograd.grad(relative_attention(*tensors, mask, backend="dense").sum(), mask)
    torch.testing.assert_close(torch.autograd.grad(compiled(*tensors, mask).sum(), mask), expected)


def test_a_backward_pass_under_autocast_keeps_its_dtypes(rng) -> None:
    tensors = inputs()
    output = relative_attention(*tensors, backend="blocks")
    upstream = torch.randn_like(output)
    expected = torch.autograd.grad(output, tensors, upstream, retain_graph=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = torch.autograd.grad(output, tensors, upstream)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


# --- the blocks that it chooses, and "auto"

SIZES = 2, 4, 300, 600, 8
ENCODINGS: dict[str, Callable[[], Any]] = {
    "relative": lambda: relattn.RelativeEmbedding(8, 700),
    "shaw": lambda: relattn.ShawEmbedding(8, 16),
    "txl+t5": lambda: relattn.TransformerXLEmbedding(4, 8) + relattn.T5Bias(4),
    "disentangled": lambda: relattn.DisentangledEmbedding(4, 8, max_distance=40),
    "explicit": lambda: relattn.RelativeEmbedding(8, 900, num_heads=4),
}
DOCUMENTS = torch.arange(SIZES[3]).div(130, rounding_mode="floor")[None].expand(2, -1)
LIMITS: dict[str, dict[str, Any]] = {
    "all pairs": {},
    "causal": {"is_causal": True, "query_position": 300},
    "a window": {"window": (150, 20), "query_position": 250},
    "documents": {"segment_ids": (DOCUMENTS[:, :300], DOCUMENTS)},
    "padding": {"key_mask": torch.arange(SIZES[3]) < torch.tensor([[170], [0]])},
    "a mask": {"attn_mask": torch.arange(SIZES[2])[:, None] // 90 == torch.arange(SIZES[3]) // 180, "softcap": 3.0},
}


@pytest.mark.one_in(5)
@pytest.mark.pairs
@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("name", ENCODINGS)
def test_chosen_blocks_equal_dense_across_their_edges(name: str, limits: str, rng) -> None:
    """Several blocks of queries, heads and batch elements, grouped queries; float64, equal but for rounding."""
    batch, heads, queries, keys, width = SIZES
    encoding, given = ENCODINGS[name]().double(), dict(LIMITS[limits])
    for parameter in encoding.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    query = torch.randn(batch, heads, queries, width, dtype=torch.float64, requires_grad=True)
    key, value = (torch.randn(batch, 2, keys, width, dtype=torch.float64, requires_grad=True) for _ in range(2))
    if name == "explicit":
        given |= {"query_position": torch.randperm(queries), "key_position": torch.randperm(keys)}
    leaves = [query, key, value, *encoding.parameters()]
    answers = {}
    for backend in ("blocks", "dense"):
        output, lse = attention_and_lse(query, key, value, enable_gqa=True, encoding=encoding, backend=backend, **given)
        upstream = (output.detach().cos(), lse.detach().masked_fill(lse == -torch.inf, 0.0).cos())
        answers[backend] = [output, lse, *torch.autograd.grad((output, lse), leaves, upstream)]
    for ours, dense in zip(*answers.values(), strict=True):
        torch.testing.assert_close(ours, dense, rtol=1e-9, atol=1e-9)


def blocks_of(monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], **given: Any) -> list[blocks._Block]:
    """The blocks of a call of the shape B, Hq, Hk, Lq, Lk."""
    seen: list[blocks._Block] = []
    walk = blocks._blocks
    monkeypatch.setattr(blocks, "_blocks", lambda problem: iter(seen.extend(walk(problem)) or ()))
    batch, heads, key_heads, queries, keys = shape
    query, key = torch.zeros(batch, heads, queries, 1), torch.zeros(batch, key_heads, keys, 1)
    relative_attention(query, key, key, enable_gqa=True, backend="blocks", **given)
    return seen


def pairs(block: blocks._Block, batch: int) -> int:
    queries, keys, heads = (part.stop - part.start for part in (block.queries, block.keys, block.heads))
    return queries * keys * heads * (batch if block.batch is None else 1)


@pytest.mark.parametrize(
    ("shape", "count"),
    [
        ((1, 8, 8, 512, 512), 4),
        ((1, 8, 8, 4096, 4096), 32 * 4),
        ((2, 4, 4, 2048, 2048), 2 * 16),
        ((1, 64, 1, 1024, 4096), 64),
        ((1, 1, 1, 64, 2**17), 4),
    ],
)
def test_blocks_stay_below_their_bound(shape: tuple[int, ...], count: int, monkeypatch) -> None:
    found = blocks_of(monkeypatch, shape)
    assert len(found) == count
    assert sum(pairs(block, shape[0]) for block in found) == shape[0] * shape[1] * shape[3] * shape[4]
    fewest = blocks.FEWEST_QUERIES * shape[1] // shape[2] * shape[4]
    assert max(pairs(block, shape[0]) for block in found) <= max(blocks.PAIRS, fewest)


IDS = torch.arange(1024)[None] // 256
VISIBLE: dict[str, tuple[dict[str, Any], list[tuple[int, int]]]] = {
    "causal": ({"is_causal": True}, [(0, 128 * n + 128) for n in range(8)]),
    "a window": ({"window": (100, 0)}, [(max(128 * n - 100, 0), 128 * n + 128) for n in range(8)]),
    "documents": ({"segment_ids": IDS}, [(n // 2 * 256, n // 2 * 256 + 256) for n in range(8)]),
    "padding": ({"key_mask": (torch.arange(1024) < 300)[None]}, [(0, 300)] * 8),
    "nothing to see": ({"key_mask": torch.zeros(1, 1024, dtype=torch.bool)}, []),
    "limits on explicit positions": (
        {"query_position": torch.arange(1024), "key_position": torch.arange(1024), "window": (9, 0)},
        [(max(128 * n - 9, 0), 128 * n + 128) for n in range(8)],
    ),
    "a mask": ({"attn_mask": (IDS.mT == IDS)[None]}, [(n // 2 * 256, n // 2 * 256 + 256) for n in range(8)]),
}


@pytest.mark.parametrize("name", VISIBLE)
def test_a_block_has_the_keys_that_it_sees(name: str, monkeypatch) -> None:
    given, expected = VISIBLE[name]
    found = blocks_of(monkeypatch, (1, 2, 2, 1024, 1024), **given)
    assert [(block.keys.start, block.keys.stop) for block in found[::-1]] == expected


@pytest.mark.parametrize(
    ("shape", "chosen"),
    [
        ((1, 8, 512, 512), "dense"),
        ((2, 8, 512, 512), "blocks"),
        ((64, 8, 128, 128), "dense"),
        ((64, 8, 256, 256), "blocks"),
        ((16, 8, 31, 8192), "dense"),
        ((16, 8, 32, 8192), "blocks"),
    ],
)
def test_auto_takes_blocks_for_many_pairs(shape: tuple[int, int, int, int], chosen: str) -> None:
    """In float64, which native does not compute."""
    batch, heads, queries, keys = shape
    query, key = (torch.zeros(batch, heads, length, 1, dtype=torch.float64) for length in (queries, keys))
    assert explain(query, key, key, encoding=relattn.AlibiBias(heads)).chosen == chosen


@pytest.mark.slow
@pytest.mark.graphs
def test_auto_guards_no_open_length(rng) -> None:
    """One graph, which takes the compiled kernels for lengths on both sides of the bound."""
    graphs = []
    encoding = relattn.AlibiBias(8)

    def keep(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    @torch.compile(backend=keep, fullgraph=True, dynamic=True)
    def compiled(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return relative_attention(query, key, value, encoding=encoding)

    for length in (700, 30, 1400):
        tensors = [torch.randn(1, 8, length, 4) for _ in range(3)]
        expected = relative_attention(*tensors, encoding=encoding, backend="dense")
        torch.testing.assert_close(compiled(*tensors), expected, rtol=1e-4, atol=1e-5)
    assert len(graphs) == 1
    assert torch.ops.relattn.native in [node.target for node in graphs[0].graph.nodes]
