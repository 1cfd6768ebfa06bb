"""Windows to train on and to evaluate on, of whatever the tokens are made from."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

IGNORED = -100


@dataclass(frozen=True, eq=False)
class Windows:
    """Evaluation windows: `input_ids` and `labels` [N, L], and for each window how many positions stand before its
    padding (`lengths` [N]), the index of its piece (`piece` [N]) and the step of its first label (`start` [N]); int64.

    A step is a 16th note of four-part music, and one token of anything else.
    """

    input_ids: np.ndarray
    labels: np.ndarray
    lengths: np.ndarray
    piece: np.ndarray
    start: np.ndarray


class DrawnWindows(ABC):
    """`count` windows to train on, each {"input_ids", "labels"}, int64 [length]; labels[p] follows input_ids[p].

    Window i is a function of (seed, i) alone, so a run that stopped goes on with the very same data.
    """

    def __init__(self, count: int, seed: int) -> None:
        self._count, self._seed = count, seed

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        index = operator.index(index)
        if not 0 <= index < self._count:
            raise IndexError(f"index: got {index}; expected 0..{self._count - 1}")
        inputs, labels = self._draw(np.random.default_rng([self._seed, index]))
        return {"input_ids": inputs, "labels": labels}

    @abstractmethod
    def _draw(self, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """(input_ids, labels) of a window."""


def draw_crop(random: np.random.Generator, ends: np.ndarray, size: int) -> tuple[int, int]:
    """(a piece, the step at which a crop of `size` steps begins), for pieces that end at `ends`, one behind the other.

    A piece is drawn in proportion to its length. The start is drawn from a range that overhangs both ends by half a
    crop, then clipped: so beginnings and ends are seen about as often as the middle.
    """
    chosen = int(np.searchsorted(ends, random.integers(ends[-1]), side="right"))
    last = max(0, int(ends[chosen] - (ends[chosen - 1] if chosen else 0)) - size)
    return chosen, int(np.clip(random.integers(-(size // 2), last + size // 2 + 1), 0, last))


def batches(windows: Windows, batch_size: int) -> Iterator[Windows]:
    """`windows` in batches of at most `batch_size`, longest first, each trimmed to its longest window.

    Raises ValueError: for a `batch_size` below 1.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size: got {batch_size}; expected at least 1")
    order = np.argsort(-windows.lengths, kind="stable")
    for first in range(0, len(order), batch_size):
        rows = order[first : first + batch_size]
        longest = windows.lengths[rows[0]]
        yield Windows(
            windows.input_ids[rows, :longest],
            windows.labels[rows, :longest],
            windows.lengths[rows],
            windows.piece[rows],
            windows.start[rows],
        )
