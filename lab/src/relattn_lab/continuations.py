"""The same opening continued by every encoding of a comparison, for its report."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from relattn_lab.checkpoint import load_checkpoint
from relattn_lab.compose import Sampling, continue_tokens
from relattn_lab.listen import Tune
from relattn_lab.medium import Opening, Request, Written
from relattn_lab.support.files import write_json
from relattn_lab.support.progress import Progress
from relattn_lab.voices.medium import FourVoices, as_written, tune
from relattn_lab.voices.vocabulary import Vocabulary
from relattn_lab.writing import explain_unwritten

FILE = "continuation.json"
GIVEN = 8
COMPOSED = 4
"""A window of n tokens gives n / 8 steps and composes n / 4: half a window of four voices, and a whole one."""


def continuations(models: dict[str, Path], data: str, seed: int, progress: Progress) -> list[Tune]:
    """Each model's continuation of the same opening, and the piece itself. Empty where no piece is long enough.

    models: encoding -> the folder of its model of four voices. data: the comparison's data; the seed picks a test
    piece. What was composed is kept beside the models; none is composed again.
    """
    found, opening = [], None
    for encoding, folder in models.items():
        model, card = load_checkpoint(folder)
        opening = opening or _opening(data, card.vocabulary, model.config.length, seed)
        if opening is None:
            return []
        path = folder.parent / FILE
        tokens = _read(path, opening)
        if tokens is None:
            count = FourVoices.step_tokens * (model.config.length // COMPOSED)
            tokens = continue_tokens(model, opening.tokens, opening.allowed, count, Sampling(seed=seed), progress)
            with explain_unwritten("a composition", folder.parent):
                write_json(path, {"tokens": tokens.tolist()})
        title = f"{opening.name}, continued by {encoding}"
        found.append(tune(model, Written(title, opening, tokens, card.vocabulary), f"{opening.name}-{encoding}"))
    return found if opening is None else [*found, *as_written(opening, len(found[0].steps))]


def _opening(data: str, vocabulary: Vocabulary, length: int, seed: int) -> Opening | None:
    """A test piece that is long enough; None where there is none."""
    try:
        return FourVoices().opening(data, vocabulary, Request(prompt_steps=max(1, length // GIVEN)), seed)
    except ValueError:
        return None


def _read(path: Path, opening: Opening) -> np.ndarray | None:
    """What was composed before from this opening; None where there is nothing, or it is another's or damaged."""
    try:
        tokens = np.array(json.loads(path.read_bytes())["tokens"], dtype=np.int64)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    given = len(opening.tokens)
    return tokens if len(tokens) > given and np.array_equal(tokens[:given], opening.tokens) else None
