"""Losses by position in a window: sums that add up over batches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from relattn_lab.windows import IGNORED


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


def collect_losses(
    length: int,
    losses: np.ndarray,
    labels: np.ndarray,
    into: Losses | None = None,
    positions: np.ndarray | None = None,
) -> Losses:
    """Add up `losses` [N, K] by position, without those whose `labels` [N, K] are IGNORED; K <= length.

    positions: of the columns in their windows, [K]; 0, 1, ... unless given.
    """
    counted = labels != IGNORED
    total = np.zeros(length) if into is None else into.total.copy()
    count = np.zeros(length, dtype=np.int64) if into is None else into.count.copy()
    places = np.arange(labels.shape[1]) if positions is None else positions
    np.add.at(total, places, np.where(counted, losses, 0.0).sum(0))
    np.add.at(count, places, counted.sum(0))
    return Losses(total, count)
