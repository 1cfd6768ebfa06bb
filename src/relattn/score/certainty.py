"""What is certain of lengths that a compiled graph leaves open."""

from __future__ import annotations

import torch


def certainly(condition: bool) -> bool:
    """Whether a comparison of lengths holds; in a graph, whether it holds for every length that the graph leaves open.

    No guard is put on them. The import waits for a graph: it costs half of a second.
    """
    if not torch.compiler.is_compiling():
        return bool(condition)
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return statically_known_true(condition)
