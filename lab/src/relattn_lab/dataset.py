"""What every run of a comparison shares: data, the windows to evaluate on, and an n-gram's losses there."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from relattn_lab.checkpoint import DataCard
from relattn_lab.corpus import SPLITS, Corpus
from relattn_lab.losses import Losses, collect_losses
from relattn_lab.media import load_corpus
from relattn_lab.support.progress import Progress
from relattn_lab.windows import Windows

VALIDATION_TOKENS = 4096
"""Enough tokens to see a curve fall, and few enough to evaluate a dozen times in a run of a minute."""


@dataclass(frozen=True, eq=False)
class Baseline:
    """The n-gram's losses on the tokens that models are evaluated on.

    held_out: keyed by window length, as `Dataset.held_out`. validation: on the part of the valid pieces that makes the
    curve. whole: its mean loss over all tokens of a split, "valid" or "test".
    """

    held_out: dict[int, Losses]
    validation: Losses
    whole: dict[str, float]


@dataclass(frozen=True, eq=False)
class Dataset:
    """Data ready for training and evaluation.

    `held_out` is keyed by window length: the trained length, twice and four times that, over the test pieces; the same
    tokens are counted each time, with more of the piece before them. `validation` is a part of the valid pieces, for
    the curve during training. `source` is what the user named.
    """

    source: str
    corpus: Corpus
    held_out: dict[int, Windows]
    validation: Windows

    @classmethod
    def load(cls, source: str, length: int, progress: Progress, skip_bad: bool = False) -> Dataset:
        """The data that `source` names. skip_bad: see `load_corpus`.

        Raises FileNotFoundError: for no such data; ValueError: for data that are broken, empty or too short.
        """
        corpus = _read(source, progress, skip_bad)
        for remark in corpus.remarks:
            progress.say(remark)
        return cls.of(source, corpus, length)

    @classmethod
    def of(cls, source: str, corpus: Corpus, length: int) -> Dataset:
        """The dataset of `corpus`, which `source` names, in windows of `length` tokens.

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
        return cls(source, corpus, held_out, validation)

    def fit_ngram(self, progress: Progress) -> Baseline:
        """The n-gram of the training pieces, on the held-out ones. Of large data it takes minutes."""
        progress.begin("n-gram", 1)
        tested, validated = self.corpus.ngram_losses("test", "valid")
        losses = {n: _ngram_on(windows, tested, self.corpus.step_tokens) for n, windows in self.held_out.items()}
        progress.say(f"n-gram: {next(iter(losses.values())).mean:.3f} nats per token")
        whole = {"valid": float(np.concatenate(validated).mean()), "test": float(np.concatenate(tested).mean())}
        return Baseline(losses, _ngram_on(self.validation, validated, self.corpus.step_tokens), whole)

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


def _read(source: str, progress: Progress, skip_bad: bool) -> Corpus:
    reading = "reading the chorales, once" if source == "chorales" else "reading the data"

    def show(done: int, total: int) -> None:
        if done == 1:
            progress.begin(reading, total)
        progress.advance(done)

    return load_corpus(source, show, skip_bad)


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
