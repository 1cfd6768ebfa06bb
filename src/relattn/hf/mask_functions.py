"""What transformers' mask functions allow, as a MaskStructure, read from the variables that they closed over."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from types import FunctionType
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Int
from torch import Tensor
from transformers import masking_utils

from relattn.hf.masks import MaskStructure, both
from relattn.hf.probed_masks import probe


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
    """The structure behind a transformers mask function; `AttentionMaskInterface` calls it for "relattn".

    mask_function: a composition of transformers' own functions (causal, both directions, sliding windows, chunks,
        packed sequences). For any other function the mask of transformers' own sdpa is made: all pairs, written down.
    attention_mask: True for real tokens; tokens beyond its end count as padding, as everywhere in transformers. It may
        already be a structure, which `generate` makes ahead for a static cache. more: further arguments of
        transformers' mask functions.
    """
    if isinstance(attention_mask, MaskStructure):
        return attention_mask
    if isinstance(q_offset, Tensor):
        q_offset = q_offset.clone().reshape(())  # a static cache later changes the same tensor
    structure = _structure(mask_function, Sides(q_offset, q_length, kv_offset, kv_length))
    if structure is None:
        flags = {**more, "allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
        first: Any = q_offset  # which transformers annotates as an int
        pairs = masking_utils.sdpa_mask(
            batch_size, q_length, kv_length, first, kv_offset, mask_function, attention_mask, **flags
        )
        structure = MaskStructure(attn_mask=pairs)
    key_mask = None  # kept beside written pairs, too: ALiBi counts the real tokens
    if attention_mask is not None:
        missing = kv_length + kv_offset - attention_mask.shape[1]
        padded = F.pad(attention_mask, (0, missing)) if missing > 0 else attention_mask
        key_mask = padded[:, kv_offset : kv_offset + kv_length]
        if not torch.compiler.is_compiling() and bool(key_mask.all()):
            key_mask = None
    return replace(
        structure, query_position=q_offset, key_position=kv_offset, key_mask=key_mask, lengths=(q_length, kv_length)
    )


class Sides(NamedTuple):
    """The positions of the first query and the first key, and the numbers of queries and keys."""

    q_offset: int | Int[Tensor, ""]
    q_length: int
    kv_offset: int
    kv_length: int


def _structure(mask_function: Callable, sides: Sides) -> MaskStructure | None:
    """What a transformers mask function allows, read from the variables that it closed over; None for any other
    function.
    """
    if mask_function is masking_utils.causal_mask_function:
        return MaskStructure(is_causal=True)
    if mask_function is masking_utils.bidirectional_mask_function:
        return MaskStructure()
    if torch.compiler.is_compiling():
        return probe(mask_function)
    maker, closed_over = _made_by(mask_function)
    if maker == "and_masks":
        return functools.reduce(both, (_structure(part, sides) for part in closed_over["mask_functions"]))
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
    if maker == "remap_positions_for_packed_sequence":  # in a sequence positions only shift, limits too
        inside = _structure(closed_over["mask_function"], sides)
        return None if inside is None or inside.segment_ids is not None else inside
    return None


def _made_by(mask_function: Callable) -> tuple[str, dict[str, Any]]:
    """The maker in masking_utils, and its closed-over variables by name; ("", {}) where another module made it."""
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
    """Tokens of one chunk, counted from the first real token, are a segment; the chunk's limits are also a window."""
    if sides.kv_offset + sides.kv_length <= size:  # only padding on the left is in another chunk
        return MaskStructure()
    query_ids, key_ids = (
        (torch.arange(length, device=left_padding.device) + offset - left_padding.unsqueeze(-1)) // size
        for offset, length in (sides[:2], sides[2:])
    )
    return MaskStructure(segment_ids=(query_ids, key_ids), window=(size - 1, size - 1))
