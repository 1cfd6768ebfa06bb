"""The evaluator against the definition."""

import numpy as np
import torch
from torch.nn import functional as F

from relattn_lab.evaluate import evaluate
from relattn_lab.losses import collect_losses
from relattn_lab.voices.cutting import evaluation_windows
from relattn_lab.voices.vocabulary import Vocabulary
from relattn_lab.windows import IGNORED
from tests.lab.small import model
from tests.lab.voices.synthetic import random_pieces


def test_every_token_of_every_piece_once_whatever_the_window():
    pieces = random_pieces(0, [7, 20, 13])
    vocabulary = Vocabulary.covering(pieces)
    asked = model(vocab_size=vocabulary.size, dropout=0.5).train()
    for length in (16, 32, 64):
        windows = evaluation_windows(pieces, vocabulary, length)
        losses = evaluate(asked, windows)
        assert asked.training
        total, count = np.zeros(length), np.zeros(length, dtype=int)
        asked.eval()
        for inputs, labels in zip(windows.input_ids, windows.labels, strict=True):
            logits = asked(torch.from_numpy(inputs)[None]).logits[0]
            for position in np.flatnonzero(labels != IGNORED):
                total[position] += F.cross_entropy(logits[position], torch.tensor(labels[position])).item()
                count[position] += 1
        asked.train()
        assert losses.tokens == 4 * (7 + 20 + 13)
        np.testing.assert_array_equal(losses.count, count)
        # float32 logits in batches of other sizes: a few units in the last place of losses of about 4, over 3 windows
        np.testing.assert_allclose(losses.total, total, rtol=1e-5, atol=1e-4)
        np.testing.assert_allclose(losses.mean, total.sum() / count.sum(), rtol=1e-5)


def test_losses_add_up_over_batches_of_other_lengths():
    labels = np.array([[1, 2, IGNORED], [3, IGNORED, IGNORED]])
    losses = collect_losses(4, np.array([[1.0, 2.0, 9.0], [3.0, 9.0, 9.0]]), labels)
    losses = collect_losses(4, np.array([[0.5, 0.5]]), np.array([[1, 1]]), losses)
    assert losses.total.tolist() == [4.5, 2.5, 0.0, 0.0]
    assert losses.count.tolist() == [3, 2, 0, 0]
    assert losses.mean == 7.0 / 5


def test_progress_counts_tokens():
    pieces = random_pieces(1, [30, 30])
    windows = evaluation_windows(pieces, Vocabulary.covering(pieces), 16)
    told = []
    evaluate(model(vocab_size=Vocabulary.covering(pieces).size), windows, told.append)
    assert sum(told) == 240
