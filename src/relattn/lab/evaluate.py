"""Negative log-likelihood of held-out music, in nats per token, in whole and by position in the window."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional as F

from relattn.lab.model import LabModel
from relattn.lab.music import windows as music_windows
from relattn.lab.music.windows import IGNORED, Windows

TOKENS_PER_BATCH = 4096


@dataclass(frozen=True)
class Losses:
    """Sums over windows: `total` [L] nats and `count` [L] tokens at each position of a window, float64 and int64."""

    total: np.ndarray
    count: np.ndarray

    @property
    def tokens(self) -> int:
        """Number of tokens counted."""
        return int(self.count.sum())

    @property
    def mean(self) -> float:
        """Nats per token over all positions."""
        return float(self.total.sum() / self.count.sum())


def collect_losses(length: int, losses: np.ndarray, labels: np.ndarray, into: Losses | None = None) -> Losses:
    """Add up `losses` [N, K] by position, leaving out where `labels` [N, K] are IGNORED; K <= length."""
    counted = labels != IGNORED
    total = np.zeros(length) if into is None else into.total.copy()
    count = np.zeros(length, dtype=np.int64) if into is None else into.count.copy()
    total[: labels.shape[1]] += np.where(counted, losses, 0.0).sum(0)
    count[: labels.shape[1]] += counted.sum(0)
    return Losses(total, count)


@torch.no_grad()
def evaluate(model: LabModel, windows: Windows, advance: Callable[[int], None] | None = None) -> Losses:
    """-ln p(label | the window's tokens up to it) for every label of `windows`, summed by position.

    The model is put into evaluation mode for it and left in the mode it was in. `advance(tokens)` reports progress.
    Losses and sums are taken in float64 over the model's float32 logits.
    """
    was_training = model.training
    model.eval()
    length = windows.labels.shape[1]
    losses = Losses(np.zeros(length), np.zeros(length, dtype=np.int64))
    for batch in music_windows.batches(windows, max(1, TOKENS_PER_BATCH // length)):
        logits = model(torch.from_numpy(batch.input_ids).to(model.device)).logits
        labels = torch.from_numpy(batch.labels).to(model.device)
        nats = F.cross_entropy(logits.double().transpose(1, 2), labels, ignore_index=IGNORED, reduction="none")
        losses = collect_losses(length, nats.cpu().numpy(), batch.labels, losses)
        if advance is not None:
            advance(int((batch.labels != IGNORED).sum()))
    model.train(was_training)
    return losses
