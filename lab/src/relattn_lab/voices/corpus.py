"""Four-part music as the data of a comparison."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from relattn_lab.corpus import Corpus, Words
from relattn_lab.voices.cutting import TrainingWindows, evaluation_windows
from relattn_lab.voices.ngram import NGram
from relattn_lab.voices.pieces import VOICES, MusicData
from relattn_lab.voices.vocabulary import Vocabulary
from relattn_lab.windows import Windows


class VoicesCorpus(Corpus):
    """`MusicData`: four voices interleaved, one token per pitch; training windows are transposed at random."""

    kind = "voices"
    step_tokens = len(VOICES)
    words = Words(
        tokens="four voices interleaved on a 16th-note grid; training windows are transposed at random",
        ngram="The n-gram also gets the place in the beat and the few steps before the window, which the models do "
        "not see.",
        typical="Most tokens repeat the same voice's note of the step before, so losses are small and small "
        "differences count.",
    )

    def __init__(self, data: MusicData) -> None:
        self.data, self.name = data, data.name
        self.vocabulary = Vocabulary.covering(data.pieces)

    def pieces(self, split: str) -> Sequence[np.ndarray]:
        """The steps of every piece, int16 [T, 4]."""
        return [piece.steps for piece in self.data.split(split)]

    def training_windows(self, length: int, count: int, seed: int) -> TrainingWindows:
        """Random crops of the training pieces, transposed."""
        return TrainingWindows(self.data.train, self.vocabulary, length, count, seed)

    def evaluation_windows(self, split: str, length: int) -> Windows:
        """Windows that begin where a step begins."""
        return evaluation_windows(self.data.split(split), self.vocabulary, length)

    def ngram_losses(self, *splits: str) -> list[list[np.ndarray]]:
        """By `NGram`, which reads voices and beats."""
        ngram = NGram.fit(self.data.train, self.vocabulary)
        return [[ngram.losses(piece) for piece in self.data.split(split)] for split in splits]
