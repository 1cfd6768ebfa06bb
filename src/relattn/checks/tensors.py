"""Every check of arguments, and its wording: the argument, what came, what is expected, how to mend it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import torch
from torch import Tensor

from relattn.checks.dtensors import is_dtensor, refuse_spread_input
from relattn.checks.values import kind_of
from relattn.errors import ShapeError
from relattn.interception import ORDINARY

FLOAT_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
PADDED = "a padded one with key_mask, or packed documents with segment_ids"
INTEGER_DTYPES = (torch.int64, torch.int32, torch.int16, torch.uint8, torch.int8)


def shape(tensor: Tensor) -> str:
    """A shape as the error messages print it."""
    return "[" + ", ".join(str(size) for size in tensor.shape) + "]"


def heads_after_length(fits: bool) -> str:
    """The end of a message where what came `fits` a query and a key [batch, length, heads, width]."""
    way_out = "; if query, key and value are [batch, length, heads, width], turn each with .transpose(1, 2)"
    return way_out if fits else ""


def has_shape(tensor: Tensor, *shapes: Sequence[int]) -> bool:
    """Whether the tensor has one of the shapes. `in` does not compare open sizes of a graph."""
    given = tensor.shape
    return any(
        len(given) == len(expected) and all(size == its for size, its in zip(given, expected, strict=True))
        for expected in shapes
    )


def broadcasts(sizes: Sequence[int], whole: Sequence[int]) -> bool:
    """Whether each size is 1 or that of the whole."""
    return all(size == 1 or size == its for size, its in zip(sizes, whole, strict=True))


def refuse_device(name: str, tensor: Tensor, device: torch.device, whose: str) -> NoReturn:
    """Raises ValueError: for a tensor on another device than `device`, which is `whose`."""
    raise ValueError(f"{name}: got device {tensor.device}; expected {device}, {whose}; move it with .to()")


def check_layout(name: str, tensor: Tensor, instead_of_nested: str = "an ordinary tensor") -> None:
    """An ordinary dense tensor, neither nested nor sparse."""
    if tensor.is_nested:
        raise TypeError(f"{name}: got a nested tensor; expected {instead_of_nested}")
    if tensor.layout != torch.strided:
        raise TypeError(f"{name}: got layout {tensor.layout}; expected a dense tensor; convert it with .to_dense()")


def check_float(name: str, tensor: Tensor) -> None:
    """One of the four float dtypes that attention is defined for."""
    if tensor.dtype not in FLOAT_DTYPES:
        raise TypeError(
            f"{name}: got dtype {tensor.dtype}; expected float64, float32, bfloat16 or float16; convert it with .to()"
        )


def check_tensors(query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool) -> tuple[int, ...]:
    """query [*B, Hq, Lq, D], key [*B, Hk, Lk, D], value [*B, Hk, Lk, Dv] of one dtype on one device. There may be any
    number of axes *B. They broadcast, and are returned. With GQA Hk divides Hq.
    """
    _check_tensor("query", query, query)
    _check_tensor("key", key, query)
    _check_tensor("value", value, query)
    *batch, query_heads, _, width = query.shape
    *key_batch, key_heads, key_length, key_width = key.shape
    *value_batch, value_heads, value_length, _ = value.shape
    if not batch == key_batch == value_batch:
        batch = _broadcast(query, key, value)
    if width == 0 or query_heads == 0:
        raise ShapeError(f"query: got shape {shape(query)}; expected at least one head and one feature")
    if key_width != width:
        raise ShapeError(
            f"key: got width {key_width} ({shape(key)}) beside query {shape(query)}; expected width {width}"
        )
    for what, found, expected in (("heads", value_heads, key_heads), ("length", value_length, key_length)):
        if found != expected:
            raise ShapeError(
                f"value: got {what} {found} ({shape(value)}) beside key {shape(key)}; expected {what} {expected}"
            )
    if query_heads != key_heads:
        _check_groups(query, key, enable_gqa)
    return tuple(batch)


def _check_tensor(name: str, tensor: Tensor, query: Tensor) -> None:
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name}: got {kind_of(tensor)}; expected a tensor [batch, heads, length, width]")
    if type(tensor) not in ORDINARY and is_dtensor(tensor):
        refuse_spread_input(name, tensor)
    if tensor.is_nested or tensor.layout != torch.strided:
        check_layout(name, tensor, PADDED)
    if tensor.dim() < 3:
        raise ShapeError(
            f"{name}: got shape {shape(tensor)}; expected [..., heads, length, width], such as four axes [batch, "
            "heads, length, width]; give one head an axis of its own with .unsqueeze(-3)"
        )
    if tensor.dtype not in FLOAT_DTYPES:
        check_float(name, tensor)
    if tensor.dtype != query.dtype:
        raise TypeError(f"{name}: got dtype {tensor.dtype}; expected {query.dtype}, the query's; convert with .to()")
    if tensor.device != query.device:
        refuse_device(name, tensor, query.device, "the query's")


def _check_groups(query: Tensor, key: Tensor, enable_gqa: bool) -> None:
    """Keys may have fewer heads than queries only with GQA, and their number must divide that of the queries."""
    query_heads, key_heads = query.shape[-3], key.shape[-3]
    if not enable_gqa:
        raise ShapeError(
            f"key: got {key_heads} heads ({shape(key)}) beside query {shape(query)}; expected {query_heads} heads, "
            "or enable_gqa=True where groups of query heads share a key head"
            f"{heads_after_length(query.shape[-2] == key.shape[-2] and query_heads % max(key_heads, 1) != 0)}"
        )
    if key_heads == 0 or query_heads % key_heads:
        raise ShapeError(
            f"key: got {key_heads} heads ({shape(key)}) beside query {shape(query)}; expected a divisor of "
            f"{query_heads} with enable_gqa=True"
        )


def _broadcast(query: Tensor, key: Tensor, value: Tensor) -> list[int]:
    """The axes before the heads, which broadcast as in scaled_dot_product_attention."""
    beside_query = (("key", key, "query", query), ("value", value, "query", query))
    for name, tensor, beside, other in (*beside_query, ("value", value, "key", key)):
        pairs = zip(reversed(tensor.shape[:-3]), reversed(other.shape[:-3]), strict=False)
        if any(size != its and size != 1 and its != 1 for size, its in pairs):
            raise ShapeError(
                f"{name}: got batch {_sizes(tensor.shape[:-3])} ({shape(tensor)}) beside {beside} {shape(other)}; "
                "expected the same batch"
            )
    return list(torch.broadcast_shapes(query.shape[:-3], key.shape[:-3], value.shape[:-3]))


def _sizes(sizes: Sequence[int]) -> str:
    """Axes as the error messages print them: one as a number, any others as a list."""
    return str(sizes[0]) if len(sizes) == 1 else str(list(sizes))


def check_boolean(key_mask: object) -> None:
    """A boolean tensor: a number could mean either to keep or to drop."""
    if not isinstance(key_mask, Tensor) or key_mask.dtype != torch.bool:
        came = key_mask.dtype if isinstance(key_mask, Tensor) else kind_of(key_mask)
        raise TypeError(
            f"key_mask: got {came}; expected a boolean tensor, True where a key is kept; compare (mask != 0) to make "
            "one"
        )
    check_layout("key_mask", key_mask)


def check_key_mask(key_mask: Tensor, batch: Sequence[int], key: Tensor) -> None:
    """A boolean [*B, Lk], True where a key is kept."""
    check_boolean(key_mask)
    expected = (*batch, key.shape[-2])
    if not has_shape(key_mask, expected):
        raise ShapeError(
            f"key_mask: got shape {shape(key_mask)}; expected {list(expected)} (batch, key length)"
            f"{heads_after_length(has_shape(key_mask, (*batch, key.shape[-3])))}"
        )
    if key_mask.device != key.device:
        refuse_device("key_mask", key_mask, key.device, "the key's")


def check_segments(segment_ids: object, batch: Sequence[int], query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    """Integer ids [*B, L] for both sides, or a pair ([*B, Lq], [*B, Lk]); returns the pair."""
    pair = tuple(segment_ids) if isinstance(segment_ids, (tuple, list)) else (segment_ids, segment_ids)
    if len(pair) != 2:
        raise ValueError(
            f"segment_ids: got {len(pair)} tensors; expected one [batch, length], or a pair for queries and keys"
        )
    for ids, (side, like) in zip(pair, (("query", query), ("key", key)), strict=True):
        if not isinstance(ids, Tensor) or ids.dtype not in INTEGER_DTYPES:
            came = ids.dtype if isinstance(ids, Tensor) else kind_of(ids)
            raise TypeError(f"segment_ids: got {came}; expected an integer tensor [batch, length]")
        check_layout("segment_ids", ids)
        expected = (*batch, like.shape[-2])
        if not has_shape(ids, expected):
            raise ShapeError(
                f"segment_ids: got shape {shape(ids)} for the {side} side; expected {list(expected)}; give a pair "
                "(query ids, key ids) where the lengths differ"
                f"{heads_after_length(has_shape(ids, (*batch, like.shape[-3])))}"
            )
        if ids.device != like.device:
            refuse_device("segment_ids", ids, like.device, f"the {side}'s")
    return pair  # pyright: ignore[reportReturnType]


def check_attn_mask(attn_mask: Tensor, batch: Sequence[int], query: Tensor, key: Tensor) -> None:
    """Boolean (True attends) or float (added), broadcastable to [*B, Hq, Lq, Lk]."""
    if not isinstance(attn_mask, Tensor):
        way_out = "; give an encoding as encoding=" if hasattr(attn_mask, "on") else ""  # ScoreTerms have it, too
        raise TypeError(f"attn_mask: got {kind_of(attn_mask)}; expected a boolean or float tensor{way_out}")
    check_layout("attn_mask", attn_mask)
    if attn_mask.dtype not in (torch.bool, query.dtype, torch.float32):
        integer = not attn_mask.is_floating_point()
        way_out = "a number could mean two things, compare it (mask != 0)" if integer else "convert it with .to()"
        floats = " or ".join(dict.fromkeys(map(str, (query.dtype, torch.float32))))  # a float32 query's mask only once
        raise TypeError(
            f"attn_mask: got dtype {attn_mask.dtype}; expected bool (True attends), or {floats} (added to the scores); "
            f"{way_out}"
        )
    full = (*batch, query.shape[-3], query.shape[-2], key.shape[-2])
    missing = len(full) - attn_mask.dim()
    if missing < 0 or not broadcasts(attn_mask.shape, full[missing:]):
        raise ShapeError(
            f"attn_mask: got shape {shape(attn_mask)}; expected one that broadcasts to {list(full)} (batch, heads, "
            f"queries, keys){heads_after_length(attn_mask.shape[-2:] == (query.shape[-3], key.shape[-3]))}"
        )
    if attn_mask.device != query.device:
        refuse_device("attn_mask", attn_mask, query.device, "the query's")
