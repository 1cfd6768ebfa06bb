"""Triton's interpreter with less to do for the same numbers, and one fault of it mended."""

from collections.abc import Callable
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter

_patch = interpreter._patch_lang
_reduce = interpreter.ReduceOps.apply_impl
_spread = interpreter.InterpreterBuilder.create_splat


def patch_once(function: Callable[..., Any]) -> Any:
    """Triton 3.7 patches its language where a kernel starts, and looks through all of it again for every function that
    the kernel calls. All of it is patched where `load` is.
    """
    languages = [value for value in function.__globals__.values() if value is tl or value is tl.core]
    if not languages or any(tl.core.is_builtin(language.load) for language in languages):
        return _patch(function)
    return interpreter._LangPatchScope()


def reduce(operation: Any, given: tuple[Any, ...]) -> Any:
    """Triton 3.7 combines all but sums, minima and maxima number by number."""
    if operation.combine_fn is not tl.standard._xor_combine:
        return _reduce(operation, given)
    (numbers,) = given
    found = np.bitwise_xor.reduce(numbers.handle.data, axis=int(operation.axis), keepdims=operation.keep_dims)
    return [operation.to_tensor(found, numbers.dtype)]


def spread(self: Any, block: Any, handle: Any) -> Any:
    """The truth of one comparison, for a block of numbers, stays a truth. A comparison has the type of its left side in
    the interpreter, so its truth becomes a number there, and the loads of Triton 3.9 refuse numbers as a mask.
    """
    if handle.data.dtype != np.bool_:
        return _spread(self, block, handle)
    return interpreter.TensorHandle(np.full(block.shape, handle.data), tl.int1)


def prepare() -> None:
    """From now on, in this process."""
    interpreter.InterpreterBuilder.create_splat = spread
    interpreter._patch_lang = patch_once
    interpreter.ReduceOps.apply_impl = reduce
