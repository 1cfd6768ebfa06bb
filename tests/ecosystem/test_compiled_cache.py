"""torch.compile over a layer with a KVCache: whole graphs, few of them, and the numbers of an eager call."""

from collections.abc import Iterator

import pytest
import torch
from torch._dynamo.testing import CompileCounter

import relattn
from relattn.encodings.base import RelativeEncoding
from relattn.nn import KVCache, RelativeMultiheadAttention, RelPositionMultiHeadedAttention
from relattn.nn.projected import ProjectedAttention

pytestmark = pytest.mark.graphs

PROMPT, WIDTH, HEADS = 5, 32, 2


@pytest.fixture(autouse=True)
def nothing_compiled() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def assert_few_graphs(layer: ProjectedAttention, tokens: int, room: int | None = None) -> None:
    """One graph for the prompt, at most two for the tokens after it, two more for a cache that rolls; an eager pass's
    outputs.
    """
    x, counter, cache, graphs, found = torch.randn(2, PROMPT + tokens, WIDTH), CompileCounter(), KVCache(room), [], []
    compiled = torch.compile(layer.eval(), backend=counter, fullgraph=True)
    with torch.no_grad():
        for chunk in x.split([PROMPT] + [1] * tokens, dim=1):
            found.append(compiled(chunk, is_causal=True, cache=cache))
            graphs.append(counter.frame_count)
        expected = layer(x, is_causal=True, window=None if room is None else (room - 1, 0))
    torch.testing.assert_close(torch.cat(found, dim=1), expected, atol=2e-6, rtol=2e-6)
    assert graphs[0] == 1 and graphs[-1] <= (3 if room is None else 5), graphs


@pytest.mark.slow
def test_two_hundred_tokens_take_two_graphs() -> None:
    assert_few_graphs(RelativeMultiheadAttention(WIDTH, HEADS, relattn.RotaryEmbedding(WIDTH // HEADS)), tokens=200)


@pytest.mark.slow
@pytest.mark.parametrize(
    "encoding",
    [
        None,
        relattn.T5Bias(HEADS, bidirectional=False),
        relattn.AlibiBias(HEADS),
        relattn.ShawEmbedding(WIDTH // HEADS, max_distance=8),
        relattn.RelativeEmbedding(WIDTH // HEADS, max_length=300, causal=True),
        relattn.TransformerXLEmbedding(HEADS, WIDTH // HEADS),
    ],
    ids=lambda encoding: type(encoding).__name__,
)
def test_tokens_take_two_graphs_with_every_kind_of_encoding(encoding: RelativeEncoding | None) -> None:
    assert_few_graphs(RelativeMultiheadAttention(WIDTH, HEADS, encoding), tokens=12)


@pytest.mark.slow
@pytest.mark.parametrize("room", [None, 8])
def test_tokens_of_a_conformer_and_of_a_cache_that_rolls(room: int | None) -> None:
    assert_few_graphs(RelPositionMultiHeadedAttention(WIDTH, HEADS), tokens=12, room=room)


def test_a_cache_of_a_graph_in_inference_mode_goes_on_outside() -> None:
    """torch lets nobody write into its room outside of that mode, so an eager call copies it."""
    layer = RelativeMultiheadAttention(WIDTH, HEADS).eval()
    x, cache = torch.randn(1, 4, WIDTH), KVCache()
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    with torch.inference_mode():
        parts = [compiled(chunk, is_causal=True, cache=cache) for chunk in (x[:, :2], x[:, 2:3])]
    with torch.no_grad():
        parts.append(layer(x[:, 3:], is_causal=True, cache=cache))
        expected = layer(x, is_causal=True)
    torch.testing.assert_close(torch.cat(parts, dim=1), expected, atol=2e-6, rtol=2e-6)
