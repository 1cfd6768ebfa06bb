"""The tiled backend: memory linear in the length, forward and backward, in plain PyTorch on any device."""

from __future__ import annotations

import torch
from torch import Tensor

from relattn.backends.operators import reasons_of_an_operator
from relattn.backends.tiled.operator import run
from relattn.score.problem import Problem


class TiledBackend:
    """S a tile at a time, O((Lq + Lk) D) memory: FlashAttention's recurrence with the tables' bands beside it.

    The forward pass keeps the output and lse; the backward pass computes every tile's weights again. Scores, softmax
    and sums are float32 (float64 for float64 inputs). Pairs that causality, a window, segments or a mask hide cost
    nothing where they fill a tile, and beyond a clipped table nothing is multiplied. Rabe and Staats 2021; Dao et al.
    2022.
    """

    name = "tiled"

    def reasons(self, problem: Problem) -> list[str]:
        """It runs everything, but neither under the transforms of torch.func nor in an export to ONNX."""
        return reasons_of_an_operator("ONNX has no operator for its tiles")

    def run(self, problem: Problem) -> tuple[Tensor, Tensor | None]:
        """O and, where asked for, lse. Dropout's seed is drawn here, from torch's generator."""
        seed = torch.randint(2**63 - 1, ()) if problem.dropout_p > 0.0 else None
        output, lse = run(problem, seed)
        return output, lse if problem.return_lse else None
