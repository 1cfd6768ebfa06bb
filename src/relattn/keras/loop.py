"""Blocks of queries, in order, each computed again for its gradient: memory O(block * Lk), not O(Lq * Lk).

    attend(...)  ->  output (B, H, Lq, Dv), and the weights where they are asked for

Each backend has its own loop, because they differ in what a loop keeps for its gradient.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from relattn.keras.attend import Mask, Settings, attend_block, problem
from relattn.keras.installed import keras, ops
from relattn.keras.positions import Positions
from relattn.keras.tensors import Index, Tensor, is_known
from relattn.keras.terms import ScoreTerms

BLOCK = 128
"""The default number of queries per block."""

SMALLEST_LONG = 1024
"""The default number of queries from which on they are cut into blocks."""


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    terms: ScoreTerms,
    positions: Positions,
    mask: Mask,
    *,
    scale: float,
    dropout: float,
    seed: Tensor | None,
    block: int | None,
    return_weights: bool,
) -> tuple[Tensor, Tensor | None]:
    """Attention of (B, H, L, D) tensors, all of the dtype of the scores. block: queries per block; None: by length.

    The weights are all pairs, so there is only one block if they are wanted.
    """
    query_length = positions.query_length
    count = 1 if return_weights else _count(query_length, block)
    size = -(-query_length // count)
    padding = size * count - query_length
    arrays, places = problem(query, key, value, terms, positions, mask, scale, seed, size, padding)
    settings = Settings(positions.lowest, positions.highest, dropout, places)
    if is_known(count) and count == 1:
        whole = attend_block(settings, 1, 0, arrays)
        return whole.output, whole.weights if return_weights else None
    blocks = _loop()(settings, count, arrays)
    _, batch, heads, _, width = ops.shape(blocks)
    output = ops.reshape(ops.transpose(blocks, (1, 2, 0, 3, 4)), (batch, heads, size * count, width))
    return output[:, :, :query_length], None


def _count(query_length: Index, block: int | None) -> Index:
    """The number of blocks; a length that is only known when the graph runs counts as long."""
    if block is None:
        if is_known(query_length) and query_length < SMALLEST_LONG:
            return 1
        block = BLOCK
    count = -(-query_length // block)
    return max(count, 1) if is_known(count) else ops.maximum(count, 1)


@functools.cache
def _loop() -> Callable[[Settings, Index, dict[str, Tensor]], Tensor]:
    """(settings, count, arrays) -> the outputs of all blocks, [count, B, H, size, Dv], by the active backend."""
    makers = {"tensorflow": _tensorflow_loop, "jax": _jax_loop, "torch": _torch_loop}
    return makers[keras.backend.backend()]()


def _jax_loop() -> Callable[..., Any]:
    import jax

    @functools.partial(jax.jit, static_argnums=(0, 1))
    def loop(settings: Settings, count: int, arrays: dict[str, Tensor]) -> Tensor:
        block = jax.checkpoint(lambda index: attend_block(settings, count, index, arrays).output)
        return jax.lax.map(block, jax.numpy.arange(count))

    return loop


def _torch_loop() -> Callable[..., Any]:
    import torch
    from torch.utils.checkpoint import checkpoint

    def loop(settings: Settings, count: int, arrays: dict[str, Tensor]) -> Tensor:
        def block(index: int) -> Tensor:
            return attend_block(settings, count, index, arrays).output

        # Dropout draws from its own seeds, so there is no generator state to restore.
        blocks = [checkpoint(block, index, use_reentrant=False, preserve_rng_state=False) for index in range(count)]
        return torch.stack(blocks)  # pyright: ignore[reportArgumentType]

    return loop


def _tensorflow_loop() -> Callable[..., Any]:
    import tensorflow as tf  # pyright: ignore[reportMissingImports]

    def recomputed(settings: Settings, count: Index, index: Tensor, arrays: dict[str, Tensor]) -> Tensor:
        """attend_block with a gradient that computes it again (tf.recompute_grad takes no boolean arguments)."""
        names = [name for name, array in arrays.items() if array.dtype.is_floating]

        def compute(values: tuple[Tensor, ...]) -> Tensor:
            return attend_block(settings, count, index, {**arrays, **dict(zip(names, values, strict=True))}).output

        @tf.custom_gradient
        def block(*values: Tensor) -> Any:
            def backward(upstream: Tensor) -> Any:
                with tf.GradientTape() as tape:
                    tape.watch(values)
                    output = compute(values)
                return tape.gradient(output, values, upstream, unconnected_gradients=tf.UnconnectedGradients.ZERO)

            return compute(values), backward

        return block(*(arrays[name] for name in names))

    # A graph even where execution is eager: the eager tape would keep every block's gradients by key and value.
    @functools.partial(tf.function, autograph=False)
    def loop(settings: Settings, count: Index, arrays: dict[str, Tensor]) -> Tensor:
        query, value = arrays["query"], arrays["value"]
        shape = [*query.shape[:2], None, value.shape[-1]]
        blocks = tf.TensorArray(query.dtype, size=count, element_shape=shape)
        _, blocks = tf.while_loop(
            lambda index, _: index < count,
            lambda index, done: (index + 1, done.write(index, recomputed(settings, count, index, arrays))),
            (tf.constant(0), blocks),
            parallel_iterations=1,
            maximum_iterations=count if is_known(count) else None,
        )
        return blocks.stack()

    return loop
