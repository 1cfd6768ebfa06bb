"""Further arguments of a model's attention. An argument that changes the result and would be dropped is refused."""

from __future__ import annotations

from torch import Tensor, nn

from relattn.errors import ShapeError, UnsupportedError
from relattn.hf.masks import MaskStructure

CHANGES: dict[str, str] = {
    "block_indices": "the blocks of keys that it chose for each query",
    "block_table": "a paged cache",
    "cache": "a paged cache",
    "indices": "the keys that it chose for each query",
    "k_cache": "a paged cache",
    "v_cache": "a paged cache",
}
"""Keywords that change the result and that relattn cannot use, with their meaning. Other keywords do not concern
attention: models hand on every argument that they get.
"""

SEQUENCES = "cu_seq_lens_q", "cu_seq_lens_k"
"""The ends of packed sequences; the mask must show them, too."""


def check_kwargs(module: nn.Module, structure: MaskStructure, keywords: dict[str, object]) -> None:
    """No keyword that changes the result is dropped.

    Raises UnsupportedError: for a keyword that changes the result.
    """
    kind = type(module).__name__
    for name, brought in CHANGES.items():
        if keywords.get(name) is not None:
            raise UnsupportedError(
                f"attn_implementation='relattn': {kind} hands its attention {name}, {brought}, which relattn does not "
                "read; load the model with 'sdpa' or 'eager'"
            )
    for name in SEQUENCES:
        ends = keywords.get(name)
        if isinstance(ends, Tensor) and ends.shape[0] > 2 and structure.segment_ids is None:
            raise UnsupportedError(
                f"attn_implementation='relattn': {kind} hands its attention {name} of {ends.shape[0] - 1} packed "
                "sequences, which its mask does not tell apart; give position_ids that start anew in each, and no "
                "attention_mask"
            )


def check_mask(module: nn.Module, mask: MaskStructure | Tensor | None) -> None:
    """A tensor must be a mask of pairs.

    Raises ShapeError: for a mask of tokens, [B, L], which would be read as a mask of pairs.
    """
    if isinstance(mask, Tensor) and mask.dim() < 3:
        raise ShapeError(
            f"attention_mask: {type(module).__name__} got shape {list(mask.shape)}; expected a mask of pairs, [batch, "
            "heads or 1, queries, keys]; give a mask of tokens to the model, or as "
            "relattn.hf.MaskStructure(key_mask=...)"
        )
