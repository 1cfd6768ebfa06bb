"""Masks as the callers of layers give them, brought to one form."""

from __future__ import annotations

from relattn.errors import ShapeError
from relattn.keras.installed import ops
from relattn.keras.tensors import Shape, Tensor


def as_length_mask(name: str, mask: Tensor | None, batch: int | None, length: int | None) -> Tensor | None:
    """A mask (B, L), as booleans."""
    if mask is None:
        return None
    if not _fits(mask.shape, (batch, length)) or (mask.shape[1] == 1 and length not in (1, None)):
        raise ShapeError(f"{name}: got shape {list(mask.shape)}; expected [batch, length], here {[batch, length]}")
    return ops.cast(mask, "bool")


def as_pair_mask(mask: Tensor | None, shape: Shape) -> Tensor | None:
    """A mask (Lq, Lk), (B, Lq, Lk) or (B, H, Lq, Lk) for scores of that shape, as booleans of the last form."""
    if mask is None:
        return None
    batch, _, query_length, key_length = shape
    by_rank = {2: (query_length, key_length), 3: (batch, query_length, key_length)}
    if not _fits(mask.shape, by_rank.get(len(mask.shape), shape)):
        raise ShapeError(
            f"attention_mask: got shape {list(mask.shape)}; expected [Lq, Lk], [batch, Lq, Lk] or "
            f"[batch, heads, Lq, Lk], here {query_length} queries and {key_length} keys"
        )
    full = ops.cast(mask, "bool")
    for _ in range(4 - len(mask.shape)):
        full = ops.expand_dims(full, axis=-3)
    return full


def _fits(shape: Shape, expected: Shape) -> bool:
    """Whether a mask can be broadcast to the expected shape, as far as both are known."""
    return len(shape) == len(expected) and all(
        size in (1, None, full) or full is None for size, full in zip(shape, expected, strict=True)
    )
