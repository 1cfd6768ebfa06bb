"""Format: one way in which checkpoints hold an attention layer with relative positions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from relattn.encodings.base import RelativeEncoding

Axes = Mapping[str, tuple[int, ...]]
"""Names of parameters, and the numbers of axes that each may have."""

Tensors = Mapping[str, Tensor]
"""Parameters by name: of a checkpoint, or of one layer. Names of a layer are local, without the layer's prefix."""


class MismatchError(Exception):
    """Why one layer cannot be read or written; the code that catches it adds the name of the layer."""


@dataclass(frozen=True)
class Format:
    """The parameters of a format's layers, and how they become ours.

    name: as `to_relattn` and the command take it. about: the source of the layer.

    anchors: local names; any one of them shows that a layer has this format.
    needs, may: the local names of the parameters it must have, and may have.
    stays: beginnings of local names that do not belong to the attention and stay unchanged.
    takes: the sets of parameters of our encodings that it can hold.
    read: their parameters to ours (q_proj.weight, ..., encoding.*), both with local names; write: the way back. Each
        raises MismatchError for parameters that the other side cannot hold.
    model: the encoding of our parameters, as far as it follows from their shapes, and the width of a head.
    outside: finds a layer's parameters that do not stand under its own name, in a checkpoint with these names.
    place: the name under which a local parameter of a layer is written.
    note: a sentence about what a checkpoint does not say.
    """

    name: str
    about: str
    anchors: tuple[str, ...]
    needs: Axes
    takes: tuple[Axes, ...]
    read: Callable[[Tensors], dict[str, Tensor]]
    write: Callable[[Tensors], dict[str, Tensor]]
    model: Callable[[Tensors], tuple[RelativeEncoding, int]]
    may: Axes = field(default_factory=dict)
    stays: tuple[str, ...] = ()
    outside: Callable[[Collection[str], str], dict[str, str]] = lambda names, layer: {}
    place: Callable[[str, str], str] = lambda layer, local: layer + local
    note: str = ""


def layers_in(names: Collection[str], anchors: tuple[str, ...]) -> list[str]:
    """The layers that have an anchor, in the order of the names: the part before the anchor, up to "." or "/"."""
    found = (
        name.removesuffix(anchor)
        for name in names
        for anchor in anchors
        if name == anchor or name.endswith(("." + anchor, "/" + anchor))
    )
    return list(dict.fromkeys(found))
