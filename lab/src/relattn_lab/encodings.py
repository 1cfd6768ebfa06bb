"""The encodings that the lab trains, and the options that it gives them over the catalogue's own."""

from __future__ import annotations

from typing import Any

from relattn import RelativeEncoding, catalogue
from relattn_lab.checks import check_choice
from relattn_lab.voices.places import steps_within
from relattn_lab.voices.sources import in_four_voices

ENCODINGS = (
    "relative-heads", "relative", "relative+pitch+time", "shaw", "shaw-keys", "transformer-xl", "t5", "alibi", "kerple",
    "kerple-power", "sandwich", "rope", "none", "sinusoid", "sinusoid+voice",
)  # fmt: skip
"""Names of the catalogue that a comparison trains; `disentangled` was made for attention in both directions."""
WITHIN_THE_TRAINED_LENGTH = ("key-query",)
"""Those that refuse the offsets of windows longer than those trained, on which a comparison evaluates them all."""
BAR = 64
"""Tokens in a bar of 16 sixteenths in four voices."""


def lab_options(name: str, length: int) -> dict[str, Any]:
    """What the lab adds for a model trained on windows of `length` tokens, to be evaluated on longer ones.

    Relative tables: a distance that was never trained takes the edge row, in time too, which counts the steps of four
    voices. Shaw: clipped at a bar of the past; causal attention never looks to the right.
    """
    if name in ("relative", "relative-heads"):
        return {"beyond": "clamp"}
    if name == "relative+pitch+time":
        return {"beyond": "clamp", "max_steps": steps_within(length)}
    if name in ("shaw", "shaw-keys"):
        return {"max_distance": [min(BAR, length - 1), 0]}
    return {}


def check_encoding(name: object, known: tuple[str, ...] = (*ENCODINGS, *WITHIN_THE_TRAINED_LENGTH)) -> None:
    """`name` is one of those `known`.

    Raises ValueError: when it is not, naming them all.
    """
    check_choice("encoding", name, known)


def check_data(name: str, source: str) -> None:
    """The tokens of the data that `source` names stand on the axes of the encoding `name`.

    Raises ValueError: when they do not.
    """
    entry = catalogue.CATALOGUE[name]
    lacking = [f"place on {' and '.join(map(repr, entry.axes))}"] * bool(entry.axes) + ["voice"] * entry.voices
    if lacking and not in_four_voices(source):
        raise ValueError(
            f"encodings: got {name!r} for {source}, whose tokens have no {' and no '.join(lacking)}; "
            'expected music in four voices for it, "chorales" or a .json file; leave it out, or name such data'
        )


def build_encoding(name: str, layer: catalogue.Layer, options: dict[str, Any]) -> RelativeEncoding | None:
    """A fresh encoding module for one attention layer, or None for attention without positions.

    options: keyword arguments of the encoding's class, over the catalogue's.

    Raises ValueError: for an unknown name, or options that the encoding does not have.
    """
    check_encoding(name)
    return catalogue.CATALOGUE[name].build(layer, **options)
