"""MaskStructure: which pairs attend. A transformers model passes it to its attention without writing the pairs down."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from relattn.equation.mask import AttentionMask, Segments
from relattn.equation.visible_blocks import SIZE, VisibleBlocks
from relattn.errors import UnsupportedError
from relattn.positions.position import PositionLike, PositionsLike
from relattn.positions.positions import Window


@dataclass(frozen=True)
class MaskStructure:
    """The mask arguments of `relative_attention`, as transformers' `create_causal_mask` and similar functions hand them
    on.

    query_position, key_position: where the first query and key stand.
    is_causal, window: as in `relative_attention`.
    key_mask [B, Lk]: True keeps. segment_ids: packed sequences, or chunks.
    attn_mask: a mask of pairs that was written down, broadcastable to [B, H, Lq, Lk].
    lengths: the numbers of queries and keys, if transformers' functions made the structure.
    """

    query_position: PositionsLike = 0
    key_position: PositionsLike = 0
    is_causal: bool = False
    window: Window | None = None
    key_mask: Bool[Tensor, "B Lk"] | None = None
    segment_ids: Segments | None = None
    attn_mask: AttentionMask | None = None
    lengths: tuple[int, int] = field(default=(0, 0), compare=False)

    ndim = 4
    """Tells transformers that it is not a padding mask [B, Lk] but a finished mask."""

    @property
    def shape(self) -> tuple[int, int]:
        """Queries x keys; transformers asks a finished mask for it."""
        return self.lengths

    @classmethod
    def __torch_function__(cls, function: Callable, *_: object) -> None:
        """Refuse attention that computes with its mask: it does not use the interface, and would fail with a less clear
        error.

        Raises UnsupportedError: always.
        """
        raise UnsupportedError(
            f"attn_implementation='relattn': attention that calls no interface got a mask without pairs, and calls "
            f"{function.__name__} on it; load the model without the name and call relattn.hf.patch"
        )

    def to(self, *_: object, **__: object) -> MaskStructure:
        """Itself: models convert the dtype of the mask of pairs that they expect here."""
        return self

    def contiguous(self) -> MaskStructure:
        """Itself."""
        return self

    def from_query(self, first: int) -> MaskStructure:
        """The structure for the queries from that one on."""
        ids, pairs = self.segment_ids, self.attn_mask
        if ids is not None:
            query_ids, key_ids = ids if isinstance(ids, tuple) else (ids, ids)
            ids = query_ids[:, first:], key_ids
        if pairs is not None and pairs.shape[-2] > 1:
            pairs = pairs[..., first:, :]
        position: Any = self.query_position
        lengths = self.lengths[0] - first, self.lengths[1]
        return replace(self, query_position=position + first, segment_ids=ids, attn_mask=pairs, lengths=lengths)

    def keywords(self) -> dict[str, Any]:
        """As arguments of `relative_attention`."""
        keywords = {name: getattr(self, name) for name in ARGUMENTS}
        return keywords if torch.compiler.is_compiling() else keywords | {"visible_blocks": self._visible_blocks}

    @cached_property
    def _visible_blocks(self) -> VisibleBlocks | None:
        """For all layers that get this structure; None for few keys, and for a float mask, of which one call can tell
        more.
        """
        pairs = self.attn_mask
        is_float = pairs is not None and pairs.dtype != torch.bool
        if is_float or self.lengths[1] <= SIZE or (pairs is self.key_mask is self.segment_ids is None):
            return None
        return VisibleBlocks(pairs, self.key_mask, self.segment_ids)


ARGUMENTS = tuple(name for name in MaskStructure.__dataclass_fields__ if name != "lengths")
"""Its fields that are arguments of `relative_attention`."""


def both(a: MaskStructure | None, b: MaskStructure | None) -> MaskStructure | None:
    """The pairs that both allow; None where no structure can hold them."""
    if a is None or b is None or (a.segment_ids is not None and b.segment_ids is not None):
        return None
    window = a.window or b.window
    if a.window and b.window:
        window = _nearer(a.window[0], b.window[0]), _nearer(a.window[1], b.window[1])
    return MaskStructure(
        is_causal=a.is_causal or b.is_causal,
        window=window,
        segment_ids=b.segment_ids if a.segment_ids is None else a.segment_ids,
    )


def _nearer(a: int | None, b: int | None) -> int | None:
    """The smaller limit of a window's side; None where neither sets one."""
    if a is None or b is None:
        return b if a is None else a
    return min(a, b)


def as_structure(mask: MaskStructure | Tensor | None, is_causal: bool, query_position: PositionLike) -> MaskStructure:
    """The mask that a model handed its attention, as a structure.

    A tensor is a mask of pairs, boolean (True attends) or float (added). None means no mask, or a causal one if
    `is_causal`. Tensors and None carry no positions: the first query is at `query_position`.
    """
    if isinstance(mask, MaskStructure):
        return mask
    if mask is None:
        return MaskStructure(query_position=query_position, is_causal=is_causal)
    return MaskStructure(query_position=query_position, attn_mask=mask)
