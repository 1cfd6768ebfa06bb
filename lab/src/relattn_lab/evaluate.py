"""Negative log-likelihood of held-out data, in nats per token, in whole and by position in the window."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

import numpy as np
import torch
from torch.nn import functional as F

from relattn_lab.data_parallel import ONE_PROCESS, DataParallel
from relattn_lab.losses import Losses, collect_losses
from relattn_lab.model import LabModel
from relattn_lab.windows import IGNORED, Windows, batches

TOKENS_PER_BATCH = 4096


@torch.no_grad()
def evaluate(
    model: LabModel,
    windows: Windows,
    advance: Callable[[int], None] | None = None,
    parallel: DataParallel = ONE_PROCESS,
) -> Losses:
    """-ln p(label | the window's tokens up to it) for every label of `windows`, summed by position.

    The model is put into evaluation mode for it and left in the mode it was in. `advance(tokens)` reports progress.
    Losses and sums are taken in float64 over the model's float32 logits. Of several processes all call it.
    Each takes a share of the batches and a part of their windows. The sums are over all processes.
    """
    was_training = model.training
    model.eval()
    length = windows.labels.shape[1]
    losses = Losses(np.zeros(length), np.zeros(length, dtype=np.int64))
    share = islice(batches(windows, max(1, TOKENS_PER_BATCH // length)), parallel.group, None, parallel.groups)
    for batch in share:
        part = parallel.part({"input_ids": batch.input_ids, "labels": batch.labels})
        logits = model(part.input_ids.to(model.device), positions=part.positions.to(model.device)).logits
        labels = part.labels.to(model.device)
        nats = F.cross_entropy(logits.double().transpose(1, 2), labels, ignore_index=IGNORED, reduction="none")
        losses = collect_losses(length, nats.cpu().numpy(), part.labels.numpy(), losses, part.positions.numpy())
        if advance is not None:
            advance(parallel.groups * int((batch.labels != IGNORED).sum()))
    model.train(was_training)
    return _of_all(losses, parallel, model.device)


def _of_all(losses: Losses, parallel: DataParallel, device: torch.device) -> Losses:
    """The sums over all processes."""
    if parallel.processes == 1:
        return losses
    sums = (parallel.total(torch.from_numpy(part).to(device)) for part in (losses.total, losses.count))
    return Losses(*(part.cpu().numpy() for part in sums))
