"""Corpus: what a comparison asks of its data, whether four-part music, text or played music."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from relattn_lab.windows import Windows

SPLITS = ("train", "valid", "test")


class TrainingWindows(Protocol):
    """Examples {"input_ids", "labels"}, int64 [length], each a function of the seed and its index alone."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> dict[str, np.ndarray]: ...


@dataclass(frozen=True)
class Words:
    """What the report says of the data: how they become tokens, what the n-gram reads, and what most tokens are."""

    tokens: str
    ngram: str
    typical: str


class Corpus(ABC):
    """Pieces, split into "train", "valid" and "test", and how they become tokens.

    kind: what the pieces are, a key of `relattn_lab.media.MEDIA`. name: for the report. step_tokens: how many tokens a
    step has, the unit that `Windows.start` counts in. remarks: sentences about what was left out.
    """

    kind: str
    name: str
    words: Words
    vocabulary: Any
    step_tokens: int = 1
    remarks: Sequence[str] = ()

    @abstractmethod
    def pieces(self, split: str) -> Sequence[np.ndarray]:
        """The pieces of a split, each an integer array [steps, ...] of as many numbers as it has tokens."""

    @abstractmethod
    def training_windows(self, length: int, count: int, seed: int) -> TrainingWindows:
        """`count` random windows of `length` tokens of the training pieces."""

    @abstractmethod
    def evaluation_windows(self, split: str, length: int) -> Windows:
        """The whole of a split in windows of `length` tokens, every token the label of exactly one position."""

    @abstractmethod
    def ngram_losses(self, *splits: str) -> list[list[np.ndarray]]:
        """-ln p of every token of every piece of these splits, by an n-gram fitted on the training pieces."""

    @property
    def fingerprint(self) -> str:
        """SHA-256 of all pieces, in their splits and order."""
        digest = hashlib.sha256()
        for split in SPLITS:
            for piece in self.pieces(split):
                digest.update(f"{split} {len(piece)} ".encode() + piece.tobytes())
        return digest.hexdigest()
