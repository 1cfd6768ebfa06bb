"""Helpers for Keras tensors: names for annotations, lengths that may be unknown, slices, dtypes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from relattn.checks.values import as_int, came, check_size
from relattn.errors import ShapeError
from relattn.keras.installed import keras, ops

Tensor: TypeAlias = Any
"""A tensor of the active backend."""

Index: TypeAlias = Any
"""A position or a length: an int where it is known, an int32 scalar tensor where it is only known when the graph runs.
"""

Place: TypeAlias = Any
"""Where elements stand: the position of the first one, an Index, or explicit ones, an int32 tensor [L] or [B, L]."""

Shape: TypeAlias = tuple[int | None, ...]


def is_known(*numbers: Index) -> bool:
    """Whether all of them are ints."""
    return all(isinstance(number, int) for number in numbers)


def is_explicit(place: Place) -> bool:
    """Whether its positions are explicit."""
    return hasattr(place, "shape") and len(place.shape) > 0


def numbers_of(tensor: Tensor) -> np.ndarray | None:
    """The numbers of a tensor; None where they are only known when the graph runs."""
    try:
        return np.asarray(ops.convert_to_numpy(tensor))
    except (NotImplementedError, TypeError):  # TensorFlow and JAX raise these for a tensor of a graph
        return None


def as_place(name: str, place: Any, length: int | None, batch: int | None) -> Place:
    """Positions as the caller gives them: a start (an int or an integer scalar), or those of `length` elements.

    length, batch: None where they are only known when the graph runs. Tensors are never read.
    """
    start = as_int(place)
    if start is not None:
        return start
    if isinstance(place, Mapping):
        raise TypeError(
            f"{name}: got a mapping of the axes {', '.join(map(repr, place))}; expected positions on the sequence "
            "alone, for relattn.keras has no other axes; relattn.nn and relative_attention of PyTorch have them"
        )
    if not hasattr(place, "shape"):
        raise TypeError(
            f"{name}: got {came(place)}; expected the position of the first element, an int or a scalar integer "
            "tensor, or a tensor of the position of every element"
        )
    shape, dtype = list(place.shape), keras.backend.standardize_dtype(place.dtype)
    fits = len(shape) < 3 and (not shape or shape[-1] == length or None in (shape[-1], length))
    fits = fits and (len(shape) < 2 or shape[0] == batch or None in (shape[0], batch))
    if "int" not in dtype or not fits:
        raise ShapeError(
            f"{name}: got shape {shape} of {dtype}; expected integers: the position of the first element, a scalar, or "
            f"of every element, [{length}] or {[batch, length]}"
        )
    return ops.cast(place, "int32")


def as_length(key_length: Any) -> Index:
    """The number of keys as the caller gives it: an int, or an integer scalar tensor, which is never read."""
    if as_int(key_length) is None and hasattr(key_length, "shape"):
        dtype = keras.backend.standardize_dtype(key_length.dtype)
        if len(key_length.shape) != 0 or "int" not in dtype:
            raise ShapeError(
                f"key_length: got shape {list(key_length.shape)} of {dtype}; expected an int or a scalar integer tensor"
            )
        return ops.cast(key_length, "int32")
    return check_size("key_length", key_length)


def check_features(name: str, features: Tensor, heads: int | None, width: int | None) -> None:
    """[batch, heads, length, width], with `heads` and `width` if they are given; ShapeError otherwise."""
    shape = list(features.shape)
    expected = f"[batch, {heads or 'heads'}, length, {width or 'width'}]"
    good = len(shape) == 4
    good = good and (heads is None or shape[1] in (heads, None)) and (width is None or shape[3] in (width, None))
    if not good:
        raise ShapeError(f"{name}: got shape {shape}; expected {expected}")


def score_dtype(dtype: str) -> str:
    """The dtype of scores, softmax and tables: float64 for float64, float32 for anything narrower."""
    return "float64" if dtype == "float64" else "float32"


def slice_axis(x: Tensor, axis: int, start: Index, count: Index) -> Tensor:
    """x[start : start + count] along one axis."""
    if is_known(start, count):
        return x[(slice(None),) * axis + (slice(start, start + count),)]
    sizes = list(ops.shape(x))
    zero = 0 if is_known(start) else ops.zeros_like(start)  # JAX needs starts of one dtype
    starts = [zero] * len(sizes)
    starts[axis], sizes[axis] = start, count
    return ops.slice(x, starts, sizes)


def pad_axis(x: Tensor, axis: int, count: Index) -> Tensor:
    """x with `count` zeros (False) at the end of one axis."""
    if is_known(count) and count == 0:
        return x
    widths = [(0, 0)] * len(x.shape)
    widths[axis] = (0, count)
    return ops.pad(x, widths)


def times_table(x: Tensor, table: Tensor) -> Tensor:
    """x (B, H, L, N) @ table (1 or H, N, M).

    A table of one head is a matrix, and is multiplied with the rows of a matrix. If it were broadcast over a batch of
    one head, TensorFlow 2.21 on oneDNN would write beyond its memory (tensorflow/tensorflow#117700).
    """
    if ops.shape(table)[0] != 1:
        return x @ table
    batch, heads, length, width = ops.shape(x)
    product = ops.reshape(x, (batch * heads * length, width)) @ table[0]
    return ops.reshape(product, (batch, heads, length, ops.shape(table)[2]))


def times_tables(x: Tensor, tables: Tensor) -> Tensor:
    """x (B, H, C, L, N) @ tables (1 or H, C, N, M), without broadcasting, for the reason that `times_table` gives."""
    batch, heads, chunks, length, width = shape = ops.shape(x)
    if ops.shape(tables)[0] == 1:
        batch, heads = batch * heads, 1
    rows = ops.transpose(ops.reshape(x, (batch, heads, chunks, length, width)), (1, 2, 0, 3, 4))
    product = ops.reshape(rows, (heads, chunks, batch * length, width)) @ tables
    product = ops.reshape(product, (heads, chunks, batch, length, -1))
    return ops.reshape(ops.transpose(product, (2, 0, 1, 3, 4)), (*shape[:4], ops.shape(tables)[3]))
