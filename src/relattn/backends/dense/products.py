"""The dense backend's matrix products: shared tensors are read once, and narrow ones are widened one part at a time.

Decoding needs this: one query reads all keys and values, and the cost is the number of times that they are read and
copied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from relattn.equation.visibility import with_zeros
from relattn.interception import under_torch_func

WIDENED = 2**22
"""Bytes of keys, or values, in the dtype of the scores at a time: the size of two cores' second-level caches.

One query, 8192 bfloat16 keys and values, 8 heads of width 64, 2 cores; times in ms of casting all / 16 / 8 / 4 /
2 MiB at a time: batch 1, 1.94 / 1.87 / 1.79 / 1.58 / 3.22; batch 4, 49.5 / 4.75 / 4.02 / 4.02 / 13.7. PyTorch's own
attention takes 3.6 and 14.
"""


def key_products(query: Float[Tensor, "B Hq Lq D"], key: Float[Tensor, "B Hk Lk D"]) -> Float[Tensor, "B Hq Lq Lk"]:
    """q_i . k_j, each key head with the query heads that share it."""
    if key.shape[1] == query.shape[1] and key.dtype == query.dtype:  # nothing to share or to widen
        return query @ key.transpose(-1, -2)
    key = _repeat_heads(key, query.shape[1])
    products = _widened(lambda q, k: q @ k.transpose(-1, -2), _group_heads(query, key.shape[1]), key)
    return _ungroup_heads(products, query)


def value_sums(
    weights: Float[Tensor, "B Hq Lq Lk"],
    value: Float[Tensor, "B Hk Lk Dv"],
    seen: Bool[Tensor, "#B #Hk #Lk"] | None = None,
) -> Float[Tensor, "B Hq Lq Dv"]:
    """sum_j w_ij v_j over the keys that are `seen`, each value head with the query heads that share it."""
    if value.shape[1] == weights.shape[1] and value.dtype == weights.dtype and seen is None:
        return weights @ value
    if seen is not None and torch.compiler.is_compiling():
        value, seen = with_zeros(value, seen), None
    value = _repeat_heads(value, weights.shape[1])
    return _ungroup_heads(_widened(torch.matmul, _group_heads(weights, value.shape[1]), value, seen), weights)


def row_products(features: Float[Tensor, "B H L D"], rows: Float[Tensor, "#H R D"]) -> Float[Tensor, "B H L R"]:
    """x_i . T[m] for every row m: one product per head for the whole batch, or one product where heads share."""
    if rows.shape[0] == 1:
        return F.linear(features, rows[0])
    return _by_head(features, rows.transpose(-1, -2))


def row_sums(strip: Float[Tensor, "B H L R"], rows: Float[Tensor, "#H R D"]) -> Float[Tensor, "B H L D"]:
    """sum_m w_im T[m], like `row_products`."""
    return strip @ rows[0] if rows.shape[0] == 1 else _by_head(strip, rows)


def _by_head(left: Float[Tensor, "B H L M"], right: Float[Tensor, "H M N"]) -> Float[Tensor, "B H L N"]:
    """left @ right with the batch folded into the rows: broadcasting would copy `right` for each element.

    In a graph it broadcasts, because folding would connect open lengths.
    """
    batch, _, length, _ = left.shape
    if torch.compiler.is_compiling() or batch == 1:
        return left @ right
    return (left.transpose(0, 1).flatten(1, 2) @ right).unflatten(1, (batch, length)).transpose(0, 1)


def _repeat_heads(shared: Float[Tensor, "B Hk L D"], heads: int) -> Float[Tensor, "B H L D"]:
    """In a graph a copy for each query head: folding their rows would connect open lengths."""
    if shared.shape[1] != heads and torch.compiler.is_compiling():
        return shared.repeat_interleave(heads // shared.shape[1], dim=1)
    return shared


def _group_heads(rows: Float[Tensor, "B Hq L M"], key_heads: int) -> Float[Tensor, "B Hk G*L M"]:
    """The rows of the query heads that share a key head, one below the other."""
    return rows if rows.shape[1] == key_heads else rows.unflatten(1, (key_heads, -1)).flatten(2, 3)


def _ungroup_heads(products: Float[Tensor, "B Hk G*L N"], like: Float[Tensor, "B Hq L M"]) -> Float[Tensor, "B Hq L N"]:
    heads, length = like.shape[1:3]
    if products.shape[1] == heads:
        return products
    return products.unflatten(2, (heads // products.shape[1], length)).flatten(1, 2)


def _widened(
    multiply: Callable[[Tensor, Tensor], Tensor],
    left: Float[Tensor, "B H M X"],
    right: Float[Tensor, "B H L D"],
    seen: Bool[Tensor, "#B #H #L"] | None = None,
) -> Float[Tensor, "B H M Y"]:
    """multiply(left, right in the dtype of left, zero where not `seen`); a few heads at a time where `right` outweighs
    the products.

    All parts go through one buffer, because the system may give a new buffer page by page. A backward pass would need
    the parts again, and a compiled graph would depend on the lengths. So both take the whole.
    """
    if right.dtype == left.dtype and seen is None:
        return multiply(left, right)
    batch, heads, length, width = right.shape
    recorded = torch.is_grad_enabled() and (left.requires_grad or right.requires_grad)
    if recorded or torch.compiler.is_compiling() or under_torch_func():
        return multiply(left, with_zeros(right.to(left.dtype), seen))
    if left.shape[2] >= width or right.numel() * left.element_size() <= WIDENED:
        return multiply(left, with_zeros(right.to(left.dtype), seen))
    at_once = max(WIDENED // (length * width * left.element_size()), 1)
    buffer = right.new_empty(min(at_once, batch * heads) * length * width, dtype=left.dtype)
    unseen = None if seen is None else ~seen.expand(right.shape[:3])
    parts = []
    for place in _places(batch, heads, at_once):
        part = right[place]
        wide = buffer[: part.numel()].view(part.shape).copy_(part)
        if unseen is not None:
            wide.masked_fill_(unseen[place].unsqueeze(-1), 0.0)
        parts.append(multiply(left[place], wide).flatten(0, 1))
    return torch.cat(parts).unflatten(0, (batch, heads))


def _places(batch: int, heads: int, at_once: int) -> Iterator[tuple[slice, slice]]:
    """All heads of all batch elements in order, about `at_once` of them at a time."""
    elements, at_once = max(at_once // heads, 1), min(at_once, heads)
    for first in range(0, batch, elements):
        for head in range(0, heads, at_once):
            yield slice(first, first + elements), slice(head, head + at_once)
