"""What the tests of refusals share: small inputs, and the sentence that a call raises."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

import relattn
from relattn.nn import RelativeMultiheadAttention

HEADS, WIDTH, LENGTH, EMBED = 4, 6, 12, 24


def said(call: Callable[[], object]) -> str:
    """The class and the sentence of what the call raises; "" where it raises nothing."""
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def inputs(heads: int = HEADS) -> list[Tensor]:
    return [torch.randn(2, heads, LENGTH, WIDTH) for _ in range(3)]


def layer(**options: object) -> RelativeMultiheadAttention:
    return RelativeMultiheadAttention(EMBED, HEADS, relattn.RelativeEmbedding(WIDTH, LENGTH), **options)  # pyright: ignore[reportArgumentType]


def spread(encoding: nn.Module, placement: Shard | Replicate) -> None:
    """Somebody else makes DTensors of all parameters."""
    mesh = init_device_mesh("cpu", (2,))
    for module in encoding.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            made = nn.Parameter(distribute_tensor(parameter.detach(), mesh, [placement]))
            module.register_parameter(name, made)
