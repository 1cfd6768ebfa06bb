"""The encodings by their names in the commands: one name, one meaning, in `bench`, `compare` and `convert`.

A name says which encoding it is, and whether heads share its tables. Lengths, distances and what holds beyond a table
are options. The catalogue has a default for each, which follows from the layer. A command that uses another value says
so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from relattn.encodings.alibi import AlibiBias
from relattn.encodings.base import EncodingSum, RelativeEncoding
from relattn.encodings.disentangled import DisentangledEmbedding
from relattn.encodings.kerple import KerpleBias
from relattn.encodings.key_query import KeyQueryEmbedding
from relattn.encodings.relative import RelativeEmbedding
from relattn.encodings.rotary import RotaryEmbedding
from relattn.encodings.sandwich import SandwichBias
from relattn.encodings.shaw import ShawEmbedding
from relattn.encodings.t5 import T5Bias
from relattn.encodings.transformer_xl import TransformerXLEmbedding
from relattn.equation.tables import Beyond
from relattn.positions.positions import SEQUENCE

SHAW_DISTANCE = 16
"""The clip distance of Shaw et al. 2018 in their base model (section 4.1)."""
PITCHES = 128
"""The pitches of MIDI, 0..127."""

Options = dict[str, Any]


@dataclass(frozen=True)
class Layer:
    """What an encoding needs from its attention layer: heads, their width, the length, and whether it is causal."""

    num_heads: int
    head_dim: int
    length: int
    causal: bool


@dataclass(frozen=True)
class NamedEncoding:
    """An entry of the catalogue.

    meaning: its meaning in words, for tables. source: the paper. kind: its class, or a function that makes a sum; None
        where attention itself has no positions. options: the arguments of `kind` for a layer. traits: attributes by
        which it differs from other entries of its kind. absolute: sinusoids of the position join the token embeddings
        instead. voices: labels of the voices join them, too, and all are concatenated. axes: the axes beside the
        sequence on which it stands.
    """

    name: str
    meaning: str
    source: str
    kind: Callable[..., RelativeEncoding] | None = None
    options: Callable[[Layer], Options] = lambda layer: {}
    traits: Callable[[Any], bool] = lambda encoding: True
    absolute: bool = False
    voices: bool = False
    axes: tuple[str, ...] = ()

    def describes(self, encoding: RelativeEncoding) -> bool:
        """Whether `encoding` has this name."""
        kind = self.kind if self.kind is None or isinstance(self.kind, type) else EncodingSum
        return type(encoding) is kind and self.traits(encoding)

    def build(self, layer: Layer, **options: Any) -> RelativeEncoding | None:
        """A new module for one attention layer, or None; `options` replace the catalogue's own.

        Raises ValueError: when the encoding does not have these options, or would be another entry of the catalogue
        with them.
        """
        if self.kind is None:
            if options:
                raise ValueError(f"encoding_options: got {options!r}; expected none for the encoding {self.name!r}")
            return None
        try:
            encoding = self.kind(**(self.options(layer) | options))
        except TypeError as error:
            raise ValueError(
                f"encoding_options: got {options!r}; expected what the encoding {self.name!r} takes ({error})"
            ) from error
        if name_of(encoding) != self.name:
            raise ValueError(
                f"encoding_options: got {options!r}; expected what leaves the encoding {self.name!r}: with these it is "
                f"{name_of(encoding)!r}; give that name"
            )
        return encoding


def _sized(*names: str, **others: Any) -> Callable[[Layer], Options]:
    """These of the layer's sizes under the names of an encoding's arguments, and other options."""

    def options(layer: Layer) -> Options:
        sizes = vars(layer) | {"max_length": layer.length, "max_steps": layer.length}
        return {name: sizes[name] for name in names} | others

    return options


def relative_pitch_time(
    head_dim: int, max_length: int, max_steps: int, *, causal: bool = False, beyond: Beyond = "error"
) -> RelativeEncoding:
    """S_ij = scale * q_i . (k_j + E[j - i] + T[t_j - t_i] + P[p_j - p_i]): the sequence, the axes "time" and "pitch".

    max_length and max_steps: how far E and T reach, with `causal` and `beyond` as in `RelativeEmbedding`. P has one row
    per interval of two MIDI pitches. Beyond these nothing is added; tokens without a pitch stand there.

    Source: Huang et al. 2018 (Music Transformer), relative attention with relative time and pitch.
    """
    sequence = RelativeEmbedding(head_dim, max_length, causal=causal, beyond=beyond)
    time = RelativeEmbedding(head_dim, max_steps, causal=causal, beyond=beyond)
    return sequence + time.on("time") + RelativeEmbedding(head_dim, PITCHES, beyond="zero").on("pitch")


def _on_pitch_and_time(encoding: Any) -> bool:
    """Whether a sum is one of `relative_pitch_time`."""
    on = {part.axes: part for part in encoding.encodings}
    if list(on) != [(SEQUENCE,), ("time",), ("pitch",)] or len(encoding.encodings) != len(on):
        return False
    parts = [on[(SEQUENCE,)], on[("time",)].encoding, on[("pitch",)].encoding]
    return all(type(part) is RelativeEmbedding and part.num_heads is None for part in parts)


_MUSIC, _SHAW, _KERPLE = "Huang et al. 2018, Music Transformer", "Shaw et al. 2018", "Chi et al. 2022, KERPLE"
_ENTRIES = (
    NamedEncoding("none", "no positions", "Haviv et al. 2022"),
    NamedEncoding("sinusoid", "absolute sinusoids", "Vaswani et al. 2017", absolute=True),
    NamedEncoding(
        "sinusoid+voice", "absolute sinusoids and labels of the voices, concatenated", _MUSIC,
        absolute=True, voices=True,
    ),
    NamedEncoding(
        "relative", "a row for every offset, one table for all heads", _MUSIC, RelativeEmbedding,
        _sized("head_dim", "max_length", "causal"), lambda encoding: encoding.num_heads is None,
    ),
    NamedEncoding(
        "relative-heads", "a row for every offset, a table for each head", _MUSIC, RelativeEmbedding,
        _sized("head_dim", "max_length", "causal", "num_heads"), lambda encoding: encoding.num_heads is not None,
    ),
    NamedEncoding(
        "relative+pitch+time",
        "a row for every offset, for every distance in time and for every interval of two pitches",
        _MUSIC, relative_pitch_time, _sized("head_dim", "max_length", "max_steps", "causal"), _on_pitch_and_time,
        axes=("time", "pitch"),
    ),
    NamedEncoding(
        "shaw-keys", "clipped relative keys", _SHAW, ShawEmbedding,
        _sized("head_dim", max_distance=SHAW_DISTANCE, values=False), lambda encoding: encoding.relative_values is None,
    ),
    NamedEncoding(
        "shaw", "clipped relative keys and values", _SHAW, ShawEmbedding,
        _sized("head_dim", max_distance=SHAW_DISTANCE), lambda encoding: encoding.relative_values is not None,
    ),
    NamedEncoding(
        "key-query", "a row for every offset, multiplied with query and key", "Huang, Liang et al. 2020",
        KeyQueryEmbedding, _sized("head_dim", "max_length"),
    ),
    NamedEncoding(
        "disentangled", "clipped rows, projected twice, multiplied with query and key", "He et al. 2021, DeBERTa",
        DisentangledEmbedding, _sized("num_heads", "head_dim"),
    ),
    NamedEncoding(
        "transformer-xl", "projected sinusoids with u and v", "Dai et al. 2019, Transformer-XL",
        TransformerXLEmbedding, _sized("num_heads", "head_dim"),
    ),
    NamedEncoding(
        "t5", "a bias for each bucket of offsets", "Raffel et al. 2020, T5",
        T5Bias, lambda layer: {"num_heads": layer.num_heads, "bidirectional": not layer.causal},
    ),
    NamedEncoding(
        "alibi", "a bias linear in the distance", "Press et al. 2022, ALiBi", AlibiBias, _sized("num_heads")
    ),
    NamedEncoding(
        "kerple", "a learned bias logarithmic in the distance", _KERPLE,
        KerpleBias, _sized("num_heads"), lambda encoding: encoding.kind == "log",
    ),
    NamedEncoding(
        "kerple-power", "a learned bias, a power of the distance", _KERPLE,
        KerpleBias, _sized("num_heads", kind="power"), lambda encoding: encoding.kind == "power",
    ),
    NamedEncoding(
        "sandwich", "a bias that is the product of two sinusoidal positions", "Chi et al. 2023, Sandwich",
        SandwichBias, _sized("num_heads"),
    ),
    NamedEncoding(
        "rope", "rotated queries and keys", "Su et al. 2021, RoFormer", RotaryEmbedding, _sized("head_dim")
    ),
)  # fmt: skip
CATALOGUE: dict[str, NamedEncoding] = {entry.name: entry for entry in _ENTRIES}
"""Every entry by its name."""


def name_of(encoding: RelativeEncoding) -> str:
    """The catalogue's name of a module; the name of its class where the catalogue has none, as for a sum."""
    for entry in _ENTRIES:
        if entry.describes(encoding):
            return entry.name
    return type(encoding).__name__
