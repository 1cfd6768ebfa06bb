"""Negative log-likelihood of held-out data, in nats per token, in whole and by position in the window."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch.nn import functional as F

from relattn.lab.losses import Losses, collect_losses
from relattn.lab.model import LabModel
from relattn.lab.windows import IGNORED, Windows, batches

TOKENS_PER_BATCH = 4096


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
    for batch in batches(windows, max(1, TOKENS_PER_BATCH // length)):
        logits = model(torch.from_numpy(batch.input_ids).to(model.device)).logits
        labels = torch.from_numpy(batch.labels).to(model.device)
        nats = F.cross_entropy(logits.double().transpose(1, 2), labels, ignore_index=IGNORED, reduction="none")
        losses = collect_losses(length, nats.cpu().numpy(), batch.labels, losses)
        if advance is not None:
            advance(int((batch.labels != IGNORED).sum()))
    model.train(was_training)
    return losses
