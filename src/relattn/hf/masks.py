"""MaskStructure: which pairs attend, as a transformers model tells its attention without writing the pairs down."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Int
from torch import Tensor
from transformers import masking_utils

from relattn.door import AttentionMask
from relattn.errors import UnsupportedError
from relattn.score.position import PositionLike
from relattn.score.positions import Window


@dataclass(frozen=True)
class MaskStructure:
    """The mask arguments of `relative_attention`, as transformers' `create_causal_mask` and its kin hand them on.

    query_position, key_position: where the first query and key stand. key_mask [B, Lk]: True keeps. segment_ids [B, L]:
    packed sequences. attn_mask: a mask of pairs that the caller wrote down himself, broadcastable to [B, H, Lq, Lk].
    """

    query_position: PositionLike = 0
    key_position: PositionLike = 0
    is_causal: bool = False
    window: Window | None = None
    key_mask: Bool[Tensor, "B Lk"] | None = None
    segment_ids: Int[Tensor, "B L"] | None = None
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
    **_: object,
) -> MaskStructure:
    """The structure behind a transformers mask function; what `AttentionMaskInterface` calls for "relattn".

    mask_function: a composition of transformers' own functions (causal, both directions, sliding windows, packed
        sequences). attention_mask: True for real tokens; those beyond its end count as padding, as everywhere there;
        or a structure already, which `generate` made ahead for a static cache.

    Raises UnsupportedError: when relattn knows no structure of the mask function.
    """
    if isinstance(attention_mask, MaskStructure):
        return attention_mask
    structure = _structure(mask_function)
    if isinstance(q_offset, Tensor):
        q_offset = q_offset.clone().reshape(())  # a static cache counts on in the same tensor
    key_mask = None
    if attention_mask is not None:
        missing = kv_length + kv_offset - attention_mask.shape[1]
        padded = F.pad(attention_mask, (0, missing)) if missing > 0 else attention_mask
        key_mask = padded[:, kv_offset : kv_offset + kv_length]
        if not torch.compiler.is_compiling() and bool(key_mask.all()):
            key_mask = None
    return replace(structure, query_position=q_offset, key_position=kv_offset, key_mask=key_mask)


def _structure(mask_function: Callable) -> MaskStructure:
    """What a transformers mask function allows, read from the names that its makers closed over."""
    if mask_function is masking_utils.causal_mask_function:
        return MaskStructure(is_causal=True)
    if mask_function is masking_utils.bidirectional_mask_function:
        return MaskStructure()
    maker = mask_function.__qualname__.partition(".")[0]
    closed_over = dict(
        zip(mask_function.__code__.co_freevars, (c.cell_contents for c in mask_function.__closure__ or ()), strict=True)
    )
    if maker == "and_masks":
        structure = MaskStructure()
        for part in closed_over["mask_functions"]:
            structure = _both(structure, _structure(part))
        return structure
    if maker == "sliding_window_overlay":
        return MaskStructure(window=(closed_over["sliding_window"] - 1, None))
    if maker == "sliding_window_bidirectional_overlay":
        return MaskStructure(window=(closed_over["sliding_window"],) * 2)
    if maker == "packed_sequence_mask_function":
        return MaskStructure(segment_ids=closed_over["packed_sequence_mask"])
    if maker == "remap_positions_for_packed_sequence":  # inside a sequence positions only shift, and limits with them
        return _structure(closed_over["mask_function"])
    raise UnsupportedError(
        f"attn_implementation='relattn': the model asks for a mask by {mask_function.__qualname__}, and relattn knows "
        "causal, bidirectional, sliding-window and packed masks; give a mask of pairs [batch, 1, queries, keys], or "
        "load the model with attn_implementation='sdpa'"
    )


def _both(a: MaskStructure, b: MaskStructure) -> MaskStructure:
    """The pairs that both allow."""
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
