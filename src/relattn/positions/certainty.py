"""What is certain about lengths that a compiled graph leaves open, and about numbers that are not computed yet."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def statically_true(condition: bool) -> bool:
    """Whether a comparison of lengths holds. In a graph: whether it holds for every length that the graph leaves open.

    It puts no guard on them. It imports only when there is a graph, because the import takes half a second.
    """
    if not torch.compiler.is_compiling():
        return bool(condition)
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return statically_known_true(condition)


def are_fixed(*numbers: int | None) -> bool:
    """In a graph: whether it leaves none of these lengths and limits open."""
    from torch.fx.experimental.symbolic_shapes import has_static_value

    return all(has_static_value(number) for number in numbers if number is not None)


def can_be_read(tensor: Tensor) -> bool:
    """Whether the numbers can be read without waiting for a device."""
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return False
    return type(tensor) in (Tensor, nn.Parameter) and tensor.device.type == "cpu"
