"""What is certain of lengths that a compiled graph leaves open, and of numbers that are still to come."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def certainly(condition: bool) -> bool:
    """Whether a comparison of lengths holds; in a graph, whether it holds for every length that the graph leaves open.

    No guard is put on them. The import waits for a graph: it costs half of a second.
    """
    if not torch.compiler.is_compiling():
        return bool(condition)
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return statically_known_true(condition)


def can_be_read(tensor: Tensor) -> bool:
    """Whether the numbers are there, and reading them waits for no device."""
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return False
    return type(tensor) in (Tensor, nn.Parameter) and tensor.device.type == "cpu"
