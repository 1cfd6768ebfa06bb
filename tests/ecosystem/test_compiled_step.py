"""Generated code in the ways of a training run: autocast, checkpoints, mode="reduce-overhead", masks."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from relattn import ShawEmbedding
from relattn.nn import RelativeMultiheadAttention
from tests.contract.calls import assert_equal

pytestmark = [pytest.mark.graphs, pytest.mark.slow]


@pytest.fixture(autouse=True)
def nothing_compiled() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def plain(layer: nn.Module, features: Tensor) -> Tensor:
    return layer(features, is_causal=True)


def masked(layer: nn.Module, features: Tensor) -> Tensor:
    """The last three keys are padding of the first row, and two documents share a row."""
    positions = torch.arange(features.shape[1])
    kept = torch.stack([positions < features.shape[1] - 3, positions >= 0])
    documents = (positions > 6).long().expand(2, -1)
    return layer(features, key_mask=kept, segment_ids=documents, window=(5, 2))


def under_autocast(layer: nn.Module, features: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return layer(features, is_causal=True)


def checkpointed(layer: nn.Module, features: Tensor) -> Tensor:
    output = checkpoint(layer, features, is_causal=True, use_reentrant=False)
    assert isinstance(output, Tensor)
    return output


def step(layer: nn.Module, run: Callable[[nn.Module, Tensor], Tensor], features: Tensor) -> list[Tensor]:
    """The output, and the gradients of all parameters."""
    output = run(layer, features)
    return [output.detach(), *torch.autograd.grad(output.float().square().mean(), list(layer.parameters()))]


@pytest.mark.parametrize(
    ("run", "backend", "mode"),
    [
        pytest.param(masked, "dense", None, id="masks"),
        pytest.param(under_autocast, "native", None, id="autocast"),
        pytest.param(checkpointed, "dense", None, id="checkpoints"),
        pytest.param(plain, "native", "reduce-overhead", id="reduce-overhead"),
    ],
)
def test_a_training_step(run: Callable[[nn.Module, Tensor], Tensor], backend: str, mode: str | None) -> None:
    layer = RelativeMultiheadAttention(16, 2, ShawEmbedding(8, 3), backend=backend)
    features = torch.randn(2, 14, 16)
    expected = step(layer, run, features)
    compiled = torch.compile(run, fullgraph=True, mode=mode)
    for _ in range(2):
        found = step(layer, compiled, features)
    tolerance = {"rtol": 2**-7, "atol": 2**-7} if run is under_autocast else {"rtol": 1e-4, "atol": 1e-6}
    assert_equal(found, expected, **tolerance)
