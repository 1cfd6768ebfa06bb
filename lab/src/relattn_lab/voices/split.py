"""A fixed split of pieces in which no melody stands on both sides."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from relattn_lab.voices.pieces import SILENCE, MusicData, Piece

OPENING_STEPS = 64
SAME_MELODY_STEPS = 48


def held_soprano(steps: np.ndarray) -> np.ndarray:
    """The soprano of `steps` [T, 4], int16 [T]; a rest holds the pitch before it, a first rest has the one after."""
    soprano = steps[:, 0].astype(np.int16)
    sounding = np.flatnonzero(soprano != SILENCE)
    if not len(sounding):
        return soprano
    latest = np.searchsorted(sounding, np.arange(len(soprano)), side="right") - 1
    return soprano[sounding[np.maximum(latest, 0)]]


def _opening(steps: np.ndarray) -> np.ndarray:
    """The held soprano's first 64 steps, int16 [64]; a shorter piece goes on with its last pitch."""
    soprano = held_soprano(steps[:OPENING_STEPS])
    return np.pad(soprano, (0, OPENING_STEPS - len(soprano)), mode="edge")


def tune(steps: np.ndarray) -> bytes:
    """tune = diff(soprano[:64]), in semitones, as bytes (63 of int16): the same for every transposition of a piece."""
    return np.diff(_opening(steps)).astype("<i2").tobytes()


def melody_groups(pieces: Sequence[Piece]) -> list[list[int]]:
    """The indices of `pieces`, grouped by melody.

    Two pieces are linked when, after the best transposition, 48 of their sopranos' first 64 steps agree, so passing
    notes and other ornaments do not hide a melody; a group is everything linked directly or through others. Pieces of
    one tune always share a group. Groups come in the order of their first piece.

    (The 352 chorales have 295 tunes, and make 225 groups; any threshold of 44 to 60 steps gives 220 to 243.)
    """
    openings = np.array([_opening(piece.steps) for piece in pieces], dtype=np.int64).reshape(-1, OPENING_STEPS)
    group = np.arange(len(pieces))
    for index in range(len(pieces)):
        agreeing = _best_agreement(openings[index + 1 :] - openings[index])
        for other in index + 1 + np.flatnonzero(agreeing >= SAME_MELODY_STEPS):
            joined = (group == group[index]) | (group == group[other])
            group[joined] = group[joined].min()
    return [np.flatnonzero(group == first).tolist() for first in np.unique(group)]


def _best_agreement(differences: np.ndarray) -> np.ndarray:
    """How often the most frequent value occurs in each row of `differences` [N, 64] (within -128..128): int64 [N]."""
    rows, values = len(differences), 257
    cells = (differences + 128) + values * np.arange(rows)[:, None]
    return np.bincount(cells.ravel(), minlength=rows * values).reshape(rows, values).max(axis=1, initial=0)


def split_pieces(name: str, pieces: Sequence[Piece]) -> MusicData:
    """`pieces` as data with a fixed split of about 80 / 10 / 10 percent, no melody group on two sides.

    The groups are put in the order of the SHA-256 of their smallest tune, an order that has nothing to do with the
    music and is the same on every machine. Along it, groups go to valid until it holds a tenth of the pieces, then to
    test until it does, and the rest to train.

    Raises ValueError: when the groups are too few to fill the three.
    """
    groups = sorted(
        melody_groups(pieces),
        key=lambda group: hashlib.sha256(min(tune(pieces[index].steps) for index in group)).digest(),
    )
    sides: dict[str, list[int]] = {"valid": [], "test": [], "train": []}
    for group in groups:
        side = next((s for s in ("valid", "test") if 10 * len(sides[s]) < len(pieces)), "train")
        sides[side] += group
    train, valid, test = (tuple(pieces[index] for index in sorted(sides[s])) for s in ("train", "valid", "test"))
    return MusicData(name, train, valid, test)
