"""The position encodings of the lab by name: one registry, read by the model, the command line and the report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import relattn
from relattn import RelativeEncoding


@dataclass(frozen=True)
class Shape:
    """What an encoding must know of its attention layer: its heads, their width, the trained length in tokens."""

    num_heads: int
    head_dim: int
    length: int


@dataclass(frozen=True)
class NamedEncoding:
    """An entry of the registry.

    `build(shape, **options)` gives the encoding module of one attention layer, or None where attention itself knows no
    positions; `absolute` says that sinusoids of the position are added to the token embeddings instead; `source` is
    the paper.
    """

    name: str
    title: str
    source: str
    build: Callable[..., RelativeEncoding | None]
    absolute: bool = False


def _relative(shape: Shape, **options: Any) -> RelativeEncoding:
    # "clamp": a distance that was never trained takes the edge row, which defines evaluation beyond the trained length
    options = {"num_heads": shape.num_heads, "causal": True, "beyond": "clamp"} | options
    return relattn.RelativeEmbedding(shape.head_dim, options.pop("max_length", shape.length), **options)


def _shaw(shape: Shape, **options: Any) -> RelativeEncoding:
    # A bar of 16 sixteenths in four voices is 64 tokens; causal attention never looks to the right.
    max_distance = options.pop("max_distance", (min(64, shape.length - 1), 0))
    return relattn.ShawEmbedding(shape.head_dim, max_distance, **options)


def _transformer_xl(shape: Shape, **options: Any) -> RelativeEncoding:
    return relattn.TransformerXLEmbedding(shape.num_heads, shape.head_dim, **options)


def _t5(shape: Shape, **options: Any) -> RelativeEncoding:
    return relattn.T5Bias(shape.num_heads, **({"bidirectional": False} | options))


def _alibi(shape: Shape, **options: Any) -> RelativeEncoding:
    return relattn.AlibiBias(shape.num_heads, **options)


def _rope(shape: Shape, **options: Any) -> RelativeEncoding:
    return relattn.RotaryEmbedding(shape.head_dim, **options)


def _nothing(shape: Shape) -> None:
    return None


_ENTRIES = (
    NamedEncoding("relative", "relative embeddings", "Huang et al. 2018, Music Transformer", _relative),
    NamedEncoding("shaw", "clipped relative keys and values", "Shaw et al. 2018", _shaw),
    NamedEncoding(
        "transformer-xl", "projected sinusoids with u and v", "Dai et al. 2019, Transformer-XL", _transformer_xl
    ),
    NamedEncoding("t5", "bucketed bias", "Raffel et al. 2020, T5", _t5),
    NamedEncoding("alibi", "linear bias", "Press et al. 2022, ALiBi", _alibi),
    NamedEncoding("rope", "rotary embeddings", "Su et al. 2021, RoFormer", _rope),
    NamedEncoding("none", "no positions", "Haviv et al. 2022", _nothing),
    NamedEncoding("sinusoid", "absolute sinusoids", "Vaswani et al. 2017", _nothing, absolute=True),
)
ENCODINGS: dict[str, NamedEncoding] = {entry.name: entry for entry in _ENTRIES}


def named_encoding(name: str) -> NamedEncoding:
    """The registry's entry of that name.

    Raises ValueError naming all known encodings when there is none.
    """
    if name not in ENCODINGS:
        raise ValueError(f"encoding: got {name!r}, expected one of {', '.join(ENCODINGS)}")
    return ENCODINGS[name]


def build_encoding(name: str, shape: Shape, options: dict[str, Any]) -> RelativeEncoding | None:
    """A fresh encoding module for one attention layer, or None where attention itself knows no positions.

    Args:
        name: a key of `ENCODINGS`.
        shape: heads, head width and trained length of the layer.
        options: keyword arguments of the encoding's class, over the lab's defaults.

    Raises:
        ValueError: for an unknown name, or options the encoding does not have.
    """
    entry = named_encoding(name)
    try:
        return entry.build(shape, **options)
    except TypeError as error:
        raise ValueError(f"encoding_options: {options!r} do not suit the encoding {name!r}: {error}") from error
