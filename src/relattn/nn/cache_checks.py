"""The checks of a cache's arguments, and their wording."""

from __future__ import annotations

from jaxtyping import Int64
from torch import Tensor

from relattn.checks.tensors import INTEGER_DTYPES, check_float, has_shape, shape
from relattn.checks.values import kind_of
from relattn.errors import ShapeError
from relattn.nn.growing import Growing


def check_keys_and_values(key: Tensor, value: Tensor) -> None:
    """Float tensors with four axes, and with the same batch, head count, length, dtype and device."""
    for name, tensor in (("key", key), ("value", value)):
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name}: got {kind_of(tensor)}; expected a tensor [batch, heads, length, width]")
        if tensor.dim() != 4:
            raise ShapeError(f"{name}: got shape {shape(tensor)}; expected four axes [batch, heads, length, width]")
        check_float(name, tensor)
    if key.shape[:3] != value.shape[:3]:
        raise ShapeError(
            f"value: got shape {shape(value)} beside key {shape(key)}; expected the same batch, heads and length"
        )
    if value.dtype != key.dtype or value.device != key.device:
        raise TypeError(
            f"value: got {value.dtype} on {value.device} beside key {key.dtype} on {key.device}; expected one dtype "
            "and device; convert with .to()"
        )


def check_beside(key: Tensor, value: Tensor, keys: Growing | None, values: Growing | None) -> None:
    """New keys and values continue those that are held: the same batch, heads, width, dtype and device."""
    for name, new, held in (("key", key, keys), ("value", value, values)):
        if held is None:
            continue
        (*new_outer, _, new_width), (*outer, _, width) = new.shape, held.room.shape
        if new_width != width or new_outer != outer:
            raise ShapeError(
                f"{name}: got shape {shape(new)}; expected batch, heads and width of {shape(held.held)}, which the "
                "cache holds; start a new cache for others"
            )
        if new.dtype != held.room.dtype or new.device != held.room.device:
            raise TypeError(
                f"{name}: got {new.dtype} on {new.device}; expected {held.room.dtype} on {held.room.device}, as the "
                "cache holds; convert with .to(), or start a new cache"
            )


def check_explicit(name: str, position: object, batch: int, count: int) -> None:
    """A tensor [count] or [batch, count]. Positions from a start are counted by the cache itself."""
    every = f"the position of every new token, [{count}] or [{batch}, {count}]"
    if not isinstance(position, Tensor) or position.dim() == 0:
        raise ValueError(f"{name}: got {position!r} with a cache, which counts on by itself; expected None, or {every}")
    if not has_shape(position, (count,), (batch, count)):
        raise ShapeError(f"{name}: got shape {shape(position)} with a cache; expected {every}")


def check_not_behind(
    name: str, position: Int64[Tensor, "B n"], complete_from: Int64[Tensor, "B"], max_length: str
) -> None:
    """No query stands before the first position of its row for which a rolling cache still has all keys."""
    behind = position.amin(1) < complete_from
    if bool(behind.any()):
        row = int(behind.nonzero()[0])
        raise ValueError(
            f"{name}: got {int(position[row].min())} in row {row}; expected at least {int(complete_from[row])}, for "
            f"the rolling cache ({max_length}) has dropped keys that an earlier query sees; give padding the position "
            "of the token before it, or make max_length larger"
        )


def check_encoding(printed: str, prepared_for: str) -> None:
    """The layer's encoding is the one that prepared the keys."""
    if printed != prepared_for:
        raise ValueError(
            f"cache: got keys prepared for the encoding {prepared_for}; expected {printed}, the layer's; start a new "
            "cache"
        )


def check_copied(keys: Tensor | None, values: Tensor | None) -> None:
    """The keys are held without a graph."""
    if any(held is not None and held.requires_grad for held in (keys, values)):
        raise ValueError(
            "cache: what it holds is part of a graph, which a copy cannot carry; call detach() before you copy or "
            "pickle it"
        )


def check_index(index: object, keys: Tensor | None) -> None:
    """A 1-d integer tensor of rows that `keys` has."""
    if not isinstance(index, Tensor) or index.dim() != 1 or index.dtype not in INTEGER_DTYPES:
        came = f"{index.dtype} {shape(index)}" if isinstance(index, Tensor) else kind_of(index)
        raise TypeError(f"index: got {came}; expected a 1-d integer tensor of batch rows")
    if keys is None or not index.numel():
        return
    first, last = int(index.min()), int(index.max())
    if not 0 <= first <= last < keys.shape[0]:
        raise ValueError(f"index: got rows {first}..{last}; expected 0..{keys.shape[0] - 1}, the cache's rows")
