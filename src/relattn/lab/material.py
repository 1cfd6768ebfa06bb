"""What every run of a comparison shares: data, the windows to evaluate on, and the n-gram's losses there."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from relattn.lab.checkpoint import DataCard
from relattn.lab.corpus import SPLITS, Corpus
from relattn.lab.losses import Losses, collect_losses
from relattn.lab.media import load_corpus
from relattn.lab.windows import Windows
from relattn.support.progress import Progress

VALIDATION_TOKENS = 4096
"""Enough tokens to see a curve fall, and few enough to evaluate a dozen times in a run of a minute."""


@dataclass(frozen=True, eq=False)
class Material:
    """Data ready for training and evaluation.

    `held_out` and `ngram` are keyed by window length: the trained length, twice and four times that, over the test
    pieces; the same tokens are counted each time, with more of the piece before them. `validation` is a part of the
    valid pieces, for the curve during training, and `ngram_validation` the n-gram's losses there. `ngram_whole` is its
    mean loss over all tokens of a split, "valid" or "test". `source` is what the user named.
    """

    source: str
    corpus: Corpus
    held_out: dict[int, Windows]
    validation: Windows
    ngram: dict[int, Losses]
    ngram_validation: Losses
    ngram_whole: dict[str, float]

    @classmethod
    def load(cls, source: str, length: int, progress: Progress) -> Material:
        """The material of the data that `source` names.

        Raises FileNotFoundError: for no such data; ValueError: for data that are broken, empty or too short.
        """
        return cls.of(source, _read(source, progress), length, progress)

    @classmethod
    def of(cls, source: str, corpus: Corpus, length: int, progress: Progress) -> Material:
        """The material of `corpus`, which `source` names: windows of `length` tokens, and the fitted n-gram.

        Raises ValueError: when all that is held out does not fill one window.
        """
        tokens = sum(piece.size for piece in corpus.pieces("test"))
        if tokens < length:
            raise ValueError(
                f"data: got {source}, of which {tokens} tokens are held out; expected at least {length}, a "
                "window; give "
                "more data, or a smaller --length"
            )
        held_out = {n: corpus.evaluation_windows("test", n) for n in (length, 2 * length, 4 * length)}
        validation = _first(corpus.evaluation_windows("valid", length), VALIDATION_TOKENS)
        progress.begin("n-gram", 1)
        tested, validated = corpus.ngram_losses("test", "valid")
        losses = {n: _ngram_on(windows, tested, corpus.step_tokens) for n, windows in held_out.items()}
        progress.say(f"n-gram: {losses[length].mean:.3f} nats per token")
        whole = {"valid": float(np.concatenate(validated).mean()), "test": float(np.concatenate(tested).mean())}
        known = _ngram_on(validation, validated, corpus.step_tokens)
        return cls(source, corpus, held_out, validation, losses, known, whole)

    @property
    def vocabulary(self) -> Any:
        """What the tokens stand for."""
        return self.corpus.vocabulary

    @property
    def card(self) -> DataCard:
        """What a checkpoint of a model of these data records."""
        source = self.source if self.source == "chorales" else str(Path(self.source).resolve())
        return DataCard(source, self.corpus.kind, asdict(self.vocabulary))

    @property
    def fingerprint(self) -> str:
        """SHA-256 of all pieces, in their splits and order."""
        return self.corpus.fingerprint

    def describe(self) -> dict[str, Any]:
        """Name, fingerprint, what the report says of the data, and the number of pieces and tokens in each split."""
        described: dict[str, Any] = {
            "name": self.corpus.name,
            "sha256": self.fingerprint,
            "words": asdict(self.corpus.words),
        }
        for split in SPLITS:
            pieces = self.corpus.pieces(split)
            described[split] = {"pieces": len(pieces), "tokens": sum(piece.size for piece in pieces)}
        return described


def _read(source: str, progress: Progress) -> Corpus:
    reading = "reading the chorales, once" if source == "chorales" else "reading the data"

    def show(done: int, total: int) -> None:
        if done == 1:
            progress.begin(reading, total)
        progress.advance(done)

    return load_corpus(source, show)


def _ngram_on(windows: Windows, pieces: list[np.ndarray], step_tokens: int) -> Losses:
    """The n-gram's losses, one array per piece, at the positions of `windows`."""
    losses = np.zeros(windows.labels.shape)
    for row, (piece, first, filled) in enumerate(zip(windows.piece, windows.start, windows.lengths, strict=True)):
        begin = step_tokens * first
        losses[row, :filled] = pieces[piece][begin : begin + filled]
    return collect_losses(windows.labels.shape[1], losses, windows.labels)


def _first(windows: Windows, tokens: int) -> Windows:
    """About as many windows as hold `tokens`, spread evenly."""
    rows = np.unique(
        np.linspace(0, len(windows.lengths) - 1, max(1, tokens // windows.labels.shape[1])).round().astype(int)
    )
    return Windows(*(getattr(windows, name)[rows] for name in ("input_ids", "labels", "lengths", "piece", "start")))
