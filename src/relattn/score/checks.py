"""Every check of arguments, and its wording: the argument, what came, what is expected, the way out."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from relattn.errors import ShapeError
from relattn.score.positions import Position, Positions
from relattn.score.table import OffsetTable
from relattn.score.terms import ScoreTerms

FLOAT_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
INTEGER_DTYPES = (torch.int64, torch.int32, torch.int16, torch.uint8, torch.int8)


def shape(tensor: Tensor) -> str:
    """A shape as the error messages print it."""
    return "[" + ", ".join(str(size) for size in tensor.shape) + "]"


def check_tensors(query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool) -> None:
    """query [B, Hq, Lq, D], key [B, Hk, Lk, D], value [B, Hk, Lk, Dv] of one dtype on one device; Hk divides Hq "
    "with GQA."""
    named = {"query": query, "key": key, "value": value}
    for name, tensor in named.items():
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name}: got {type(tensor).__name__}; expected a tensor [batch, heads, length, width]")
        if tensor.dim() != 4:
            raise ShapeError(f"{name}: got shape {shape(tensor)}; expected four axes [batch, heads, length, width]")
        if tensor.dtype not in FLOAT_DTYPES:
            raise TypeError(
                f"{name}: got dtype {tensor.dtype}; expected float64, float32, bfloat16 or float16; convert it with "
                ".to()"
            )
        if tensor.dtype != query.dtype:
            raise TypeError(
                f"{name}: got dtype {tensor.dtype} beside a query of {query.dtype}; expected one dtype; convert with "
                ".to()"
            )
        if tensor.device != query.device:
            raise ValueError(
                f"{name}: lies on {tensor.device} and query on {query.device}; expected one device; move it with .to()"
            )
        if tensor.shape[0] != query.shape[0]:
            raise ShapeError(
                f"{name}: got batch {tensor.shape[0]} ({shape(tensor)}) beside query {shape(query)}; expected the "
                "same batch"
            )
    if query.shape[3] == 0 or query.shape[1] == 0:
        raise ShapeError(f"query: got shape {shape(query)}; expected at least one head and one feature")
    if key.shape[3] != query.shape[3]:
        raise ShapeError(
            f"key: got width {key.shape[3]} ({shape(key)}) beside query {shape(query)}; expected width {query.shape[3]}"
        )
    for axis, what in ((1, "heads"), (2, "length")):
        if value.shape[axis] != key.shape[axis]:
            raise ShapeError(
                f"value: got {what} {value.shape[axis]} ({shape(value)}) beside key {shape(key)}; expected {what} "
                f"{key.shape[axis]}"
            )
    query_heads, key_heads = query.shape[1], key.shape[1]
    if query_heads == key_heads:
        return
    if not enable_gqa:
        raise ShapeError(
            f"key: got {key_heads} heads ({shape(key)}) beside query {shape(query)}; expected {query_heads} heads, "
            "or enable_gqa=True where groups of query heads share a key head"
        )
    if key_heads == 0 or query_heads % key_heads:
        raise ShapeError(
            f"key: got {key_heads} heads for {query_heads} query heads; expected a divisor of {query_heads} with "
            "enable_gqa=True"
        )


def check_numbers(dropout_p: float, scale: float | None) -> None:
    """0 <= dropout_p <= 1, and a finite scale."""
    if isinstance(dropout_p, bool) or not isinstance(dropout_p, int | float) or not 0.0 <= dropout_p <= 1.0:
        raise ValueError(f"dropout_p: got {dropout_p!r}; expected a probability between 0 and 1")
    if scale is not None and (isinstance(scale, bool) or not isinstance(scale, int | float) or scale - scale != 0):
        raise ValueError(f"scale: got {scale!r}; expected a finite number, or None for 1/sqrt(width)")


def check_position(name: str, position: Position, batch: int, length: int, device: torch.device) -> None:
    """A start (int or 0-d integer tensor), or explicit integer positions [length] or [batch, length]."""
    if isinstance(position, Tensor):
        if position.dtype not in INTEGER_DTYPES:
            raise TypeError(f"{name}: got dtype {position.dtype}; expected integer positions; convert with .long()")
        if position.device != device and position.dim() > 0:
            raise ValueError(f"{name}: lies on {position.device} and query on {device}; move it with .to()")
        if position.dim() > 0 and tuple(position.shape) not in ((length,), (batch, length)):
            raise ShapeError(
                f"{name}: got shape {shape(position)}; expected a start, [{length}] or [{batch}, {length}]"
            )
    elif isinstance(position, bool) or not isinstance(position, int | torch.SymInt):
        raise TypeError(
            f"{name}: got {position!r}; expected an int, or an integer tensor with a start or with every position"
        )


def check_window(window: tuple[int | None, int | None] | None) -> None:
    """(left, right), each an int of at least 0, or None for no limit."""
    if window is None:
        return
    good = isinstance(window, tuple | list) and len(window) == 2
    good = good and all(w is None or (isinstance(w, int) and not isinstance(w, bool) and w >= 0) for w in window)
    if not good:
        raise ValueError(
            f"window: got {window!r}; expected (left, right), each an int of at least 0 or None for no limit on that "
            "side"
        )


def check_key_mask(key_mask: Tensor | None, key: Tensor) -> None:
    """A boolean [B, Lk], True where a key is kept."""
    if key_mask is None:
        return
    batch, length = key.shape[0], key.shape[2]
    if not isinstance(key_mask, Tensor) or key_mask.dtype != torch.bool:
        came = key_mask.dtype if isinstance(key_mask, Tensor) else type(key_mask).__name__
        raise TypeError(
            f"key_mask: got {came}; expected a boolean tensor, True where a key is kept; compare (mask != 0) to make "
            "one"
        )
    if tuple(key_mask.shape) != (batch, length):
        raise ShapeError(f"key_mask: got shape {shape(key_mask)}; expected [{batch}, {length}] (batch, key length)")
    if key_mask.device != key.device:
        raise ValueError(f"key_mask: lies on {key_mask.device} and key on {key.device}; move it with .to()")


def check_segments(segment_ids: object, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor] | None:
    """Integer ids [B, L] for both sides, or a pair ([B, Lq], [B, Lk]); returns the pair."""
    if segment_ids is None:
        return None
    pair = tuple(segment_ids) if isinstance(segment_ids, tuple | list) else (segment_ids, segment_ids)
    if len(pair) != 2:
        raise ValueError(
            f"segment_ids: got {len(pair)} tensors; expected one [batch, length], or a pair for queries and keys"
        )
    for ids, (side, like) in zip(pair, (("query", query), ("key", key)), strict=True):
        if not isinstance(ids, Tensor) or ids.dtype not in INTEGER_DTYPES:
            came = ids.dtype if isinstance(ids, Tensor) else type(ids).__name__
            raise TypeError(f"segment_ids: got {came}; expected an integer tensor [batch, length]")
        if tuple(ids.shape) != (like.shape[0], like.shape[2]):
            raise ShapeError(
                f"segment_ids: got shape {shape(ids)} for the {side} side; expected [{like.shape[0]}, "
                f"{like.shape[2]}]; "
                "give a pair (query ids, key ids) where the lengths differ"
            )
        if ids.device != like.device:
            raise ValueError(f"segment_ids: lies on {ids.device} and {side} on {like.device}; move it with .to()")
    return pair  # pyright: ignore[reportReturnType]


def check_attn_mask(attn_mask: Tensor | None, query: Tensor, key: Tensor) -> None:
    """Boolean (True attends) or float (added), broadcastable to [B, Hq, Lq, Lk]."""
    if attn_mask is None:
        return
    if not isinstance(attn_mask, Tensor):
        raise TypeError(f"attn_mask: got {type(attn_mask).__name__}; expected a boolean or float tensor")
    if attn_mask.dtype != torch.bool and attn_mask.dtype not in (query.dtype, torch.float32):
        raise TypeError(
            f"attn_mask: got dtype {attn_mask.dtype}; expected bool (True attends) or {query.dtype} (added to the "
            "scores); "
            "an integer mask has two readings, so compare it (mask != 0) or convert it with .to()"
        )
    full = (query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    fits = attn_mask.dim() <= 4 and all(
        size in (1, whole) for size, whole in zip(reversed(attn_mask.shape), reversed(full), strict=False)
    )
    if not fits:
        raise ShapeError(
            f"attn_mask: got shape {shape(attn_mask)}; expected one that broadcasts to {list(full)} (batch, heads, "
            "queries, keys)"
        )
    if attn_mask.device != query.device:
        raise ValueError(f"attn_mask: lies on {attn_mask.device} and query on {query.device}; move it with .to()")


def check_heads(encoding: str, num_heads: int, width: int | None, tensor: Tensor) -> None:
    """An encoding with its own parameters per head meets a query of as many heads, and of its width where it has "
    "one."""
    if tensor.shape[1] != num_heads:
        raise ShapeError(
            f"{encoding} num_heads: it was made for {num_heads} heads and query has {tensor.shape[1]} "
            f"({shape(tensor)}); make it with num_heads={tensor.shape[1]}"
        )
    if width is not None and tensor.shape[3] != width:
        raise ShapeError(
            f"{encoding} head_dim: it was made for width {width} and query has {tensor.shape[3]} ({shape(tensor)}); "
            f"make it with head_dim={tensor.shape[3]}"
        )


def check_terms(terms: ScoreTerms, query: Tensor, key: Tensor, value: Tensor | None, positions: Positions) -> None:
    """What an encoding (or the caller) lowered fits the call: shapes, heads, dtypes, devices, and the visible offsets.

    value: None where the values are not at hand; the width of relative values then goes unchecked.
    """
    for name, rewritten, original in (("query", terms.query, query), ("key", terms.key, key)):
        if rewritten is not None and rewritten.shape != original.shape:
            raise ShapeError(
                f"terms {name}: got shape {shape(rewritten)} for a {name} of {shape(original)}; a rewritten {name} "
                "keeps the shape"
            )
    relative_query = query if terms.relative_query is None else terms.relative_query
    if relative_query.dim() != 4 or relative_query.shape[:3] != query.shape[:3]:
        raise ShapeError(
            f"relative_query: got shape {shape(relative_query)} beside query {shape(query)}; expected "
            f"{list(query.shape[:3])} and any width"
        )
    widths = {
        "relative_keys": (relative_query.shape[3], "the width of the relative query"),
        "relative_queries": (key.shape[3], "the width of the keys"),
        "relative_values": (None if value is None else value.shape[3], "the width of the values"),
        "bias": (None, ""),
    }
    for name, (width, meaning) in widths.items():
        table: OffsetTable | None = getattr(terms, name)
        if table is not None:
            _check_table(name, table, width, meaning, query)
            check_visible(name, table, positions, "use beyond='clamp' or 'zero', or give more rows")


def _check_table(name: str, table: OffsetTable, width: int | None, meaning: str, query: Tensor) -> None:
    values = table.values
    if values.shape[0] not in (1, query.shape[1]):
        raise ShapeError(
            f"{name}: the encoding has {values.shape[0]} heads ({shape(values)}) and query has {query.shape[1]}; "
            f"make it for {query.shape[1]} heads, or for one head shared by all"
        )
    if width is not None and values.shape[2] != width:
        raise ShapeError(
            f"{name}: the encoding has width {values.shape[2]} ({shape(values)}); expected {width}, {meaning}; make "
            f"it with head_dim={width}"
        )
    if values.dtype not in (query.dtype, torch.float32) or (query.dtype == torch.float64 != values.dtype):
        raise TypeError(
            f"{name}: got dtype {values.dtype} beside a query of {query.dtype}; convert the encoding with "
            f".to({query.dtype})"
        )
    if values.device != query.device:
        raise ValueError(f"{name}: lies on {values.device} and query on {query.device}; move the encoding with .to()")


def check_visible(name: str, table: OffsetTable, positions: Positions, way_out: str) -> None:
    """Every visible offset lies within a table that refuses others. Starts given as tensors are checked without reading
    them: the failure then is a RuntimeError, raised by the device.
    """
    if table.beyond != "refuse" or min(positions.query_length, positions.key_length) == 0:
        return
    first, last = positions.visible
    lowest, highest = table.first, table.first + table.num_rows - 1
    if all(isinstance(number, int) for number in (first, last, lowest)):
        if first <= last and (first < lowest or last > highest):
            raise ValueError(
                f"{name}: offsets {first}..{last} are visible and its rows cover {lowest}..{highest}; {way_out}"
            )
        return
    first, last, lowest, highest = (torch.as_tensor(n, device=positions.device) for n in (first, last, lowest, highest))
    inside = (first > last) | ((first >= lowest) & (last <= highest))
    torch._assert_async(  # pyright: ignore[reportPrivateImportUsage]
        inside, f"{name}: offsets beyond its {table.num_rows} rows are visible; {way_out}"
    )


def check_choice(name: str, value: object, choices: Mapping[str, object] | tuple[str, ...]) -> None:
    """`value` is one of the names in `choices`."""
    if value not in choices:
        raise ValueError(f"{name}: got {value!r}; expected one of {', '.join(repr(choice) for choice in choices)}")


def check_size(name: str, value: object, least: int = 1) -> None:
    """`value` is an int of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name}: got {value!r}; expected an int of at least {least}")
