"""Where the tokens of four voices stand on the axes "time" and "pitch"."""

from __future__ import annotations

import torch
from jaxtyping import Int64
from torch import Tensor

from relattn import GridPositions
from relattn_lab.voices.pieces import VOICES
from relattn_lab.voices.vocabulary import Vocabulary

FAR = 1000
"""The distance of a token without a pitch from every other token: beyond every interval of two pitches."""


def places_of(
    tokens: Int64[Tensor, "B L"], seen: int, numbers: Int64[Tensor, "B L"] | None = None
) -> dict[str, GridPositions | Tensor]:
    """The place of each token on both axes, as `query_position` takes it.

    time: the step of the window that the token belongs to. Token 0 of a window stands before its first step, at -1;
        token p >= 1 belongs to step (p - 1) // 4.
    pitch: the token's number, which is its pitch less a constant. "Begin" and silence have none: both stand apart, so
        that of their pairs only those of two equal tokens have an interval, 0.

    tokens: those after the first `seen` of their windows. numbers: the place of each in its window, where rows do not
        all begin together; seen, seen + 1, ... where None.
    """
    first = len(VOICES) - 1
    if numbers is None:
        time = GridPositions(((1, len(VOICES), 2**40),), start=-1, first=first + seen)
    else:
        time = (numbers + first) // len(VOICES) - 1
    return {"time": time, "pitch": torch.where(tokens > Vocabulary.silence, tokens, FAR * (2 + tokens))}


def steps_within(length: int) -> int:
    """How many different times the tokens of a window have, the one before its first step among them."""
    return (length + len(VOICES) - 2) // len(VOICES) + 1
