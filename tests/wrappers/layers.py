"""relattn's own layers, with every kind of encoding that holds a parameter or a module."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

import relattn
from relattn.nn import RelativeMultiheadAttention, RelPositionMultiHeadedAttention
from relattn.nn.projected import ProjectedAttention

DIM, HEADS, LENGTH = 32, 4, 10
WIDTH = DIM // HEADS
GRID = relattn.grid(2, LENGTH // 2)


@dataclass(frozen=True)
class Case:
    """A layer, and the keywords of its calls."""

    make: Callable[[], ProjectedAttention]
    keywords: Mapping[str, Any] = field(default_factory=dict)

    def small(self) -> ProjectedAttention:
        """The layer as it is made, in float32: its scores are below 1, so that softmax enlarges no error."""
        return self.make().eval()

    def layer(self) -> ProjectedAttention:
        """The layer with random parameters, in float64, so that an answer can be compared to the last digits."""
        layer = self.make().double().eval()
        for parameter in layer.parameters():
            nn.init.normal_(parameter, std=0.3)
        return layer

    def __call__(self, layer: nn.Module, x: Tensor) -> Tensor:
        return layer(x, **self.keywords)


def with_encoding(make: Callable[[], relattn.RelativeEncoding], **keywords: Any) -> Case:
    return Case(lambda: RelativeMultiheadAttention(DIM, HEADS, make()), keywords)


CASES = {
    "none": Case(lambda: RelativeMultiheadAttention(DIM, HEADS)),
    "relative": with_encoding(lambda: relattn.RelativeEmbedding(WIDTH, LENGTH, num_heads=HEADS)),
    "shaw": with_encoding(lambda: relattn.ShawEmbedding(WIDTH, 4)),
    "key_query": with_encoding(lambda: relattn.KeyQueryEmbedding(WIDTH, LENGTH)),
    "t5": with_encoding(lambda: relattn.T5Bias(HEADS)),
    "alibi": with_encoding(lambda: relattn.AlibiBias(HEADS, learned=True)),
    "kerple": with_encoding(lambda: relattn.KerpleBias(HEADS)),
    "transformer_xl": with_encoding(lambda: relattn.TransformerXLEmbedding(HEADS, WIDTH)),
    "transformer_xl_learned": with_encoding(lambda: relattn.TransformerXLEmbedding(HEADS, WIDTH, max_length=LENGTH)),
    "disentangled": with_encoding(lambda: relattn.DisentangledEmbedding(HEADS, WIDTH, max_distance=8)),
    "function": with_encoding(
        lambda: relattn.LogGridBias((2, LENGTH // 2), HEADS, hidden=16), query_position=GRID, key_position=GRID
    ),
    "sum": with_encoding(lambda: relattn.RotaryEmbedding(WIDTH) + relattn.T5Bias(HEADS)),
    "axes": with_encoding(
        lambda: relattn.T5Bias(HEADS).on("y") + relattn.ShawEmbedding(WIDTH, 4), query_position=GRID, key_position=GRID
    ),
    "conformer": Case(lambda: RelPositionMultiHeadedAttention(DIM, HEADS)),
}
WITH_LINEAR = ("transformer_xl", "disentangled", "function", "conformer")
"""Those whose encoding holds Linears of its own."""


def random_input() -> Tensor:
    return torch.randn(2, LENGTH, DIM, dtype=torch.float64)


def linears(layer: nn.Module) -> list[str]:
    """The names of all Linears of a layer that no wrapper has touched."""
    return [name for name, module in layer.named_modules() if type(module) is nn.Linear]


def assert_same_sums(found: Tensor | None, right: Tensor | None) -> None:
    """Equal in float64 but for the order of sums: their terms are about as large as the largest entry."""
    assert found is not None and right is not None
    torch.testing.assert_close(found, right, rtol=0.0, atol=1e-12 * float(right.abs().max()))
