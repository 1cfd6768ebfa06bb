"""Layers that share an encoding of every kind, for processes that share their heads, and what is compared of them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor

import relattn
from relattn import grid
from relattn.nn import RelativeMultiheadAttention
from tests import seeds

HEADS, WIDTH, LENGTH, EMBED = 4, 6, 12, 10
CLOSE = 1e-12
"""Sums of up to some hundred products of numbers around 1, in float64, in another order."""


class Net(nn.Module):
    """A function of the offset that learns, whose parameters cannot be assigned to heads."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(1, 5), nn.Linear(5, HEADS)

    def forward(self, offsets: Tensor) -> Tensor:
        return self.outer(self.inner(offsets.unsqueeze(-1)).tanh()).t()


def of_each_head(offsets: Tensor) -> Tensor:
    return torch.stack([-(offsets.abs() ** (1 + head / 4)) for head in range(HEADS)])


Encodings = dict[str, Callable[[], relattn.RelativeEncoding]]
ENCODINGS: Encodings = {
    "relative": lambda: relattn.RelativeEmbedding(WIDTH, LENGTH),
    "relative, by head": lambda: relattn.RelativeEmbedding(WIDTH, LENGTH, num_heads=HEADS),
    "Shaw": lambda: relattn.ShawEmbedding(WIDTH, 4),
    "Shaw, by head": lambda: relattn.ShawEmbedding(WIDTH, 4, num_heads=HEADS),
    "Shaw, of one head": lambda: relattn.ShawEmbedding(WIDTH, 4, num_heads=1),
    "T5": lambda: relattn.T5Bias(HEADS, num_buckets=8, max_distance=10),
    "ALiBi": lambda: relattn.AlibiBias(HEADS),
    "ALiBi, given": lambda: relattn.AlibiBias(HEADS, slopes=[0.5, 0.25, 1.0, 2.0]),
    "ALiBi, learned": lambda: relattn.AlibiBias(HEADS, learned=True),
    "KERPLE": lambda: relattn.KerpleBias(HEADS),
    "Sandwich": lambda: relattn.SandwichBias(HEADS, width=8),
    "rotary": lambda: relattn.RotaryEmbedding(WIDTH),
    "Transformer-XL": lambda: relattn.TransformerXLEmbedding(HEADS, WIDTH),
    "Transformer-XL, learned": lambda: relattn.TransformerXLEmbedding(HEADS, WIDTH, max_length=LENGTH),
    "key and query": lambda: relattn.KeyQueryEmbedding(WIDTH, LENGTH),
    "key and query, by head": lambda: relattn.KeyQueryEmbedding(WIDTH, LENGTH, num_heads=HEADS),
    "DeBERTa": lambda: relattn.DisentangledEmbedding(HEADS, WIDTH, max_distance=8),
    "a function": lambda: relattn.FunctionBias(of_each_head, HEADS),
    "a function that learns": lambda: relattn.FunctionBias(Net(), HEADS),
    "a sum": lambda: (
        relattn.RotaryEmbedding(WIDTH) + relattn.T5Bias(HEADS, num_buckets=8) + relattn.RelativeEmbedding(WIDTH, LENGTH)
    ),
    "grid": lambda: relattn.GridBias((3, 4), HEADS),
    "grid, by rows": lambda: relattn.GridEmbedding(WIDTH, (3, 4)),
    "grid, by rows and head": lambda: relattn.GridEmbedding(WIDTH, (3, 4), num_heads=HEADS),
    "log grid": lambda: relattn.LogGridBias((3, 4), HEADS, hidden=7),
    "y and x": lambda: (
        relattn.RelativeEmbedding(WIDTH, 3, num_heads=HEADS).on("y") + relattn.ShawEmbedding(WIDTH, 2).on("x")
    ),
    "biases of y and x": lambda: relattn.AlibiBias(HEADS).on("y") + relattn.T5Bias(HEADS, num_buckets=4).on("x"),
}
ON_GRIDS = ("grid", "grid, by rows", "grid, by rows and head", "log grid", "y and x", "biases of y and x")


class Model(nn.Module):
    """Two layers that share an encoding."""

    def __init__(self, name: str, num_kv_heads: int) -> None:
        super().__init__()
        encoding = ENCODINGS[name]()
        self.where = grid(3, 4) if name in ON_GRIDS else None
        self.layers = nn.ModuleList(
            RelativeMultiheadAttention(
                EMBED, HEADS, encoding, num_kv_heads=num_kv_heads, head_dim=WIDTH, bias=number == 0
            )
            for number in range(2)
        )
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.3)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x, is_causal=True, query_position=self.where, key_position=self.where)
        return x


def made(name: str, num_kv_heads: int) -> tuple[Model, Tensor]:
    seeds.start_all("headwise", name)
    return Model(name, num_kv_heads), torch.randn(2, LENGTH, EMBED, dtype=torch.float64)


def whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def placed(tensor: Tensor) -> tuple[str, ...]:
    return tuple(map(str, tensor.placements)) if isinstance(tensor, DTensor) else ()


def assert_close(found: Tensor, expected: Tensor, what: str) -> None:
    """Equal, but for the order of sums."""
    apart = (found - expected).abs().max().item() / (1.0 + expected.abs().max().item())
    assert apart < CLOSE, f"{what}: {apart}"


def mesh(world: int) -> DeviceMesh:
    return init_device_mesh("cpu", (world,))
