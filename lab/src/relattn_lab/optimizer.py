"""The optimizer of the lab's models: Muon for the matrices of the blocks, AdamW for all else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import AdamW, Muon, Optimizer

BETAS = (0.9, 0.98)


class MuonAndAdamW(Optimizer):
    """Two optimizers as one. Their groups are in one list, so a schedule changes the rates of both.

    Muon (Jordan et al. 2024) takes a step along the nearest orthogonal matrix to the momentum of a weight's gradient.
    Its rate is scaled so that the step is as large as AdamW's (Liu et al. 2025, "Muon is scalable"), so one rate serves
    both. It is for the matrices that multiply hidden states: linear layers of the blocks. Embeddings, tables of
    positions, biases and norms are AdamW's.
    """

    def __init__(self, model: nn.Module, learning_rate: float, weight_decay: float):
        matrices = [
            module.weight for module in model.get_submodule("blocks").modules() if isinstance(module, nn.Linear)
        ]
        chosen = {id(weight) for weight in matrices}
        others = [parameter for parameter in model.parameters() if id(parameter) not in chosen]
        self.parts: tuple[Optimizer, Optimizer] = (
            Muon(matrices, lr=learning_rate, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw"),
            AdamW(others, lr=learning_rate, betas=BETAS, weight_decay=weight_decay),
        )
        # the groups are those of the two optimizers: a rate changed here is changed there
        super().__init__([{"params": [*matrices, *others]}], {})
        self._share_groups()

    def _share_groups(self) -> None:
        self.param_groups = [group for part in self.parts for group in part.param_groups]

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """One step of each."""
        assert closure is None
        for part in self.parts:
            part.step()

    def state_dict(self) -> dict[str, Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The states of both."""
        return {"parts": [part.state_dict() for part in self.parts]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Go on where `state_dict` was taken."""
        for part, state in zip(self.parts, state_dict["parts"], strict=True):
            part.load_state_dict(state)
        self._share_groups()
