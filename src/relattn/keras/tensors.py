"""What Keras leaves to each user of its tensors: names for annotations, lengths that may be unknown, slices, dtypes."""

from __future__ import annotations

import operator
from typing import Any, TypeAlias

from relattn.errors import ShapeError
from relattn.keras.installed import keras, ops

Tensor: TypeAlias = Any
"""A tensor of the backend at work."""

Index: TypeAlias = Any
"""A position or a length: an int where it is known, an int32 scalar tensor where only the running graph knows it."""

Shape: TypeAlias = tuple[int | None, ...]


def is_known(*numbers: Index) -> bool:
    """Whether all of them are ints."""
    return all(isinstance(number, int) for number in numbers)


def as_start(name: str, start: Any) -> Index:
    """A start position as the caller gives it: an int, or an integer scalar tensor, which is never read."""
    if hasattr(start, "shape"):
        if len(start.shape) != 0 or "int" not in keras.backend.standardize_dtype(start.dtype):
            dtype = keras.backend.standardize_dtype(start.dtype)
            raise ShapeError(
                f"{name}: got shape {list(start.shape)} of {dtype}; expected the position of the first element, an int "
                "or a scalar integer tensor"
            )
        return ops.cast(start, "int32")
    try:
        return operator.index(start)
    except TypeError:
        raise TypeError(
            f"{name}: got {start!r}; expected the position of the first element, an int or a scalar integer tensor"
        ) from None


def check_features(name: str, features: Tensor, heads: int | None, width: int | None) -> None:
    """[batch, heads, length, width], and `heads` and `width` where they are given; ShapeError otherwise."""
    shape = list(features.shape)
    expected = f"[batch, {heads or 'heads'}, length, {width or 'head_size'}]"
    good = len(shape) == 4
    good = good and (heads is None or shape[1] in (heads, None)) and (width is None or shape[3] in (width, None))
    if not good:
        raise ShapeError(f"{name}: got shape {shape}; expected {expected}")


def score_dtype(dtype: str) -> str:
    """What scores, softmax and tables are computed in: float64 for float64, float32 for anything narrower."""
    return "float64" if dtype == "float64" else "float32"


def slice_axis(x: Tensor, axis: int, start: Index, count: Index) -> Tensor:
    """x[start : start + count] along one axis."""
    if is_known(start, count):
        return x[(slice(None),) * axis + (slice(start, start + count),)]
    sizes = list(ops.shape(x))
    zero = 0 if is_known(start) else ops.zeros_like(start)  # JAX wants starts of one dtype
    starts = [zero] * len(sizes)
    starts[axis], sizes[axis] = start, count
    return ops.slice(x, starts, sizes)


def times_table(x: Tensor, table: Tensor) -> Tensor:
    """x (B, H, L, N) @ table (1 or H, N, M).

    A table of one head is a matrix, and meets the rows of a matrix: broadcast over a batch of one head it would have
    TensorFlow 2.21 on oneDNN write beyond its memory (tensorflow/tensorflow#117700).
    """
    if ops.shape(table)[0] != 1:
        return x @ table
    batch, heads, length, width = ops.shape(x)
    product = ops.reshape(x, (batch * heads * length, width)) @ table[0]
    return ops.reshape(product, (batch, heads, length, ops.shape(table)[2]))
