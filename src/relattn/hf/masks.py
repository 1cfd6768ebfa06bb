"""MaskStructure: which pairs attend, as a transformers model tells its attention without writing the pairs down."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import FunctionType
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Int
from torch import Tensor
from transformers import masking_utils

from relattn.door import AttentionMask, Segments
from relattn.errors import UnsupportedError
from relattn.score.position import PositionLike, PositionsLike
from relattn.score.positions import Window


@dataclass(frozen=True)
class MaskStructure:
    """The mask arguments of `relative_attention`, as transformers' `create_causal_mask` and its kin hand them on.

    query_position, key_position: where the first query and key stand. key_mask [B, Lk]: True keeps. segment_ids: packed
    sequences, or chunks. attn_mask: a mask of pairs that was written down, broadcastable to [B, H, Lq, Lk].
    """

    query_position: PositionsLike = 0
    key_position: PositionsLike = 0
    is_causal: bool = False
    window: Window | None = None
    key_mask: Bool[Tensor, "B Lk"] | None = None
    segment_ids: Segments | None = None
    attn_mask: AttentionMask | None = None

    ndim = 4
    """What tells transformers that it is no padding mask [B, Lk] but has been made already."""

    @classmethod
    def __torch_function__(cls, function: Callable, *_: object) -> None:
        """Refuse attention that computes with its mask: it asks no interface, and would fail less clearly.

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
        """What it says of the queries from that one on."""
        ids, pairs = self.segment_ids, self.attn_mask
        if ids is not None:
            query_ids, key_ids = ids if isinstance(ids, tuple) else (ids, ids)
            ids = query_ids[:, first:], key_ids
        if pairs is not None and pairs.shape[-2] > 1:
            pairs = pairs[..., first:, :]
        position: Any = self.query_position
        return replace(self, query_position=position + first, segment_ids=ids, attn_mask=pairs)

    def keywords(self) -> dict[str, Any]:
        """As arguments of `relative_attention`."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


def relattn_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Int[Tensor, ""] = 0,
    kv_offset: int = 0,
    mask_function: Callable = masking_utils.causal_mask_function,
    attention_mask: Bool[Tensor, "B tokens"] | MaskStructure | None = None,
    **more: Any,
) -> MaskStructure:
    """The structure behind a transformers mask function; what `AttentionMaskInterface` calls for "relattn".

    mask_function: a composition of transformers' own functions (causal, both directions, sliding windows, chunks,
        packed sequences). Of any other, what transformers' own sdpa gets is made: all pairs, written down.
    attention_mask: True for real tokens; those beyond its end count as padding, as everywhere there; or a structure
        already, which `generate` made ahead for a static cache. more: what else transformers' mask functions are told.
    """
    if isinstance(attention_mask, MaskStructure):
        return attention_mask
    if isinstance(q_offset, Tensor):
        q_offset = q_offset.clone().reshape(())  # a static cache counts on in the same tensor
    structure = _structure(mask_function, Sides(q_offset, q_length, kv_offset, kv_length))
    if structure is None:
        made = {**more, "allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
        first: Any = q_offset  # which transformers annotates as an int
        pairs = masking_utils.sdpa_mask(
            batch_size, q_length, kv_length, first, kv_offset, mask_function, attention_mask, **made
        )
        return MaskStructure(query_position=q_offset, key_position=kv_offset, attn_mask=pairs)
    key_mask = None
    if attention_mask is not None:
        missing = kv_length + kv_offset - attention_mask.shape[1]
        padded = F.pad(attention_mask, (0, missing)) if missing > 0 else attention_mask
        key_mask = padded[:, kv_offset : kv_offset + kv_length]
        if not torch.compiler.is_compiling() and bool(key_mask.all()):
            key_mask = None
    return replace(structure, query_position=q_offset, key_position=kv_offset, key_mask=key_mask)


class Sides(NamedTuple):
    """Where the first query and the first key stand, and how many there are."""

    q_offset: int | Int[Tensor, ""]
    q_length: int
    kv_offset: int
    kv_length: int


def _structure(mask_function: Callable, sides: Sides) -> MaskStructure | None:
    """What a transformers mask function allows, read from the names that its makers closed over; None of any other."""
    if mask_function is masking_utils.causal_mask_function:
        return MaskStructure(is_causal=True)
    if mask_function is masking_utils.bidirectional_mask_function:
        return MaskStructure()
    maker, closed_over = _made_by(mask_function)
    if maker == "and_masks":
        return functools.reduce(_both, (_structure(part, sides) for part in closed_over["mask_functions"]))
    if maker == "or_masks":
        parts = [part for part in closed_over["mask_functions"] if not _is_empty(part)]
        return _structure(parts[0], sides) if len(parts) == 1 else None
    if maker == "sliding_window_overlay":
        return MaskStructure(window=(closed_over["sliding_window"] - 1, None))
    if maker == "sliding_window_bidirectional_overlay":
        return MaskStructure(window=(closed_over["sliding_window"],) * 2)
    if maker == "chunked_overlay":
        return _chunks(closed_over["chunk_size"], closed_over["left_padding"], sides)
    if maker == "packed_sequence_mask_function":
        return MaskStructure(segment_ids=closed_over["packed_sequence_mask"])
    if maker == "remap_positions_for_packed_sequence":  # inside a sequence positions only shift, and limits with them
        inside = _structure(closed_over["mask_function"], sides)
        return None if inside is None or inside.segment_ids is not None else inside
    return None


def _made_by(mask_function: Callable) -> tuple[str, dict[str, Any]]:
    """The maker in masking_utils, and what it closed over by name; ("", {}) where another module made it."""
    if not isinstance(mask_function, FunctionType) or mask_function.__module__ != masking_utils.__name__:
        return "", {}
    values = (cell.cell_contents for cell in mask_function.__closure__ or ())
    closed_over = dict(zip(mask_function.__code__.co_freevars, values, strict=True))
    return mask_function.__qualname__.partition(".")[0], closed_over


def _is_empty(mask_function: Callable) -> bool:
    """Whether it lets the tokens of images see each other, and there are no images."""
    maker, closed_over = _made_by(mask_function)
    if maker != "blockwise_overlay" or torch.compiler.is_compiling():
        return False
    return bool((closed_over["block_sequence_ids"] < 0).all())


def _chunks(size: int, left_padding: Int[Tensor, "B"], sides: Sides) -> MaskStructure:
    """Tokens of one chunk, counted from the first real token, are a segment; its limits are a window, too."""
    if sides.kv_offset + sides.kv_length <= size:  # padding on the left alone is in another chunk
        return MaskStructure()
    query_ids, key_ids = (
        (torch.arange(length, device=left_padding.device) + offset - left_padding.unsqueeze(-1)) // size
        for offset, length in (sides[:2], sides[2:])
    )
    return MaskStructure(segment_ids=(query_ids, key_ids), window=(size - 1, size - 1))


def _both(a: MaskStructure | None, b: MaskStructure | None) -> MaskStructure | None:
    """The pairs that both allow; None where no structure says it."""
    if a is None or b is None or (a.segment_ids is not None and b.segment_ids is not None):
        return None
    window = None
    if a.window or b.window:
        sides = zip(a.window or (None, None), b.window or (None, None), strict=True)
        left, right = (min((s for s in side if s is not None), default=None) for side in sides)
        window = left, right
    return MaskStructure(
        is_causal=a.is_causal or b.is_causal,
        window=window,
        segment_ids=b.segment_ids if a.segment_ids is None else a.segment_ids,
    )


def as_structure(mask: MaskStructure | Tensor | None, is_causal: bool, query_position: PositionLike) -> MaskStructure:
    """What a model handed its attention, as a structure.

    A tensor is a mask of pairs, boolean (True attends) or float (added). None means no mask, or a causal one if
    `is_causal`. Tensors and None carry no positions: the first query is at `query_position`.
    """
    if isinstance(mask, MaskStructure):
        return mask
    if mask is None:
        return MaskStructure(query_position=query_position, is_causal=is_causal)
    return MaskStructure(query_position=query_position, attn_mask=mask)
