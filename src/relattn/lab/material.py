"""What every run of a comparison shares: pieces, tokens, the windows to evaluate on, and the n-gram's losses there."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from relattn.lab.checkpoint import MusicCard
from relattn.lab.losses import Losses, collect_losses
from relattn.lab.music.data import SPLITS, VOICES, MusicData
from relattn.lab.music.ngram import NGram
from relattn.lab.music.sources import load_music
from relattn.lab.music.tokens import Vocabulary
from relattn.lab.music.windows import Windows, evaluation_lengths, evaluation_windows
from relattn.lab.progress import Progress

VALIDATION_TOKENS = 4096
"""Enough to see a curve fall, little enough to be evaluated a dozen times in a run of a minute."""


@dataclass(frozen=True, eq=False)
class Material:
    """Music ready for training and evaluation.

    `held_out` and `ngram` are keyed by window length: the trained length, twice and four times that, over the test
    pieces. `validation` is a part of the valid pieces, for the curve during training, and `ngram_validation` the
    n-gram's losses there. `source` is what the user named.
    """

    source: str
    data: MusicData
    vocabulary: Vocabulary
    held_out: dict[int, Windows]
    validation: Windows
    ngram: dict[int, Losses]
    ngram_validation: Losses

    @classmethod
    def load(cls, source: str, length: int, progress: Progress) -> Material:
        """The material of the data that `source` names.

        Raises what `load_music` raises: FileNotFoundError for no such data, ValueError for broken or empty ones.
        """
        return cls.of(source, _read(source, progress), length, progress)

    @classmethod
    def of(cls, source: str, data: MusicData, length: int, progress: Progress) -> Material:
        """The material of `data`, which `source` names: windows of `length` tokens, and the fitted n-gram."""
        vocabulary = Vocabulary.covering(data.pieces)
        held_out = evaluation_lengths(data.test, vocabulary, length)
        validation = _first(evaluation_windows(data.valid, vocabulary, length), VALIDATION_TOKENS)
        progress.begin("n-gram", 1)
        ngram = NGram.fit(data.train, vocabulary)
        tested, validated = ([ngram.losses(piece) for piece in pieces] for pieces in (data.test, data.valid))
        losses = {n: _ngram_on(windows, tested) for n, windows in held_out.items()}
        progress.say(f"n-gram: {losses[length].mean:.3f} nats per token")
        return cls(source, data, vocabulary, held_out, validation, losses, _ngram_on(validation, validated))

    @property
    def card(self) -> MusicCard:
        """What a checkpoint of a model of this music must know."""
        source = self.source if self.source == "chorales" else str(Path(self.source).resolve())
        return MusicCard(source, self.vocabulary.low, self.vocabulary.high)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of all pieces, in their splits and order."""
        digest = hashlib.sha256()
        for split in SPLITS:
            for piece in self.data.split(split):
                digest.update(f"{split} {len(piece.steps)} ".encode() + piece.steps.tobytes())
        return digest.hexdigest()

    def describe(self) -> dict[str, Any]:
        """Name, fingerprint, and the number of pieces and tokens in each split."""
        described: dict[str, Any] = {"name": self.data.name, "sha256": self.fingerprint}
        for split in SPLITS:
            pieces = self.data.split(split)
            described[split] = {
                "pieces": len(pieces),
                "tokens": len(VOICES) * sum(len(piece.steps) for piece in pieces),
            }
        return described


def _read(source: str, progress: Progress) -> MusicData:
    begun = False

    def show(done: int, total: int) -> None:
        nonlocal begun
        if not begun:
            progress.begin("reading the chorales, once", total)
            begun = True
        progress.advance(done)

    return load_music(source, progress=show)


def _ngram_on(windows: Windows, pieces: list[np.ndarray]) -> Losses:
    """The n-gram's losses, one array [4 T] per piece, at the positions of `windows`."""
    losses = np.zeros(windows.labels.shape)
    for row, (piece, first, filled) in enumerate(zip(windows.piece, windows.start, windows.lengths, strict=True)):
        begin = len(VOICES) * first
        losses[row, :filled] = pieces[piece][begin : begin + filled]
    return collect_losses(windows.labels.shape[1], losses, windows.labels)


def _first(windows: Windows, tokens: int) -> Windows:
    """About as many windows as hold `tokens`, spread evenly."""
    rows = np.unique(
        np.linspace(0, len(windows.lengths) - 1, max(1, tokens // windows.labels.shape[1])).round().astype(int)
    )
    return Windows(*(getattr(windows, name)[rows] for name in ("input_ids", "labels", "lengths", "piece", "start")))
