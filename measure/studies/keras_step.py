"""One training step of attention with relative keys under Keras, for the process that measures it.

    KERAS_BACKEND=tensorflow python -m measure.studies.keras_step peak naive 4096
    KERAS_BACKEND=tensorflow python -m measure.studies.keras_step seconds 512 naive article

It prints MB of the peak, or the ratios of the times to those of the first way, as JSON.
"""

# Keras describes tensors of any backend, or none; here they are those of one.
# pyright: reportCallIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportOptionalSubscript=false, reportOptionalMemberAccess=false
from __future__ import annotations

import json
import resource
import sys

HEADS, SIZE = 4, 64
SECONDS = 1.0


def naive(encoding, query, key, value):
    """softmax((Q K^T + S) / sqrt(D)) V, every step a tensor of all pairs."""
    from keras import ops

    length = query.shape[2]
    rows = encoding.relative_keys.value
    rows = ops.pad(rows[:, rows.shape[1] // 2 - length + 1 : rows.shape[1] // 2 + length], [(0, 0), (0, 1), (0, 0)])
    products = query @ ops.swapaxes(rows, -1, -2)
    flat = ops.reshape(products, (1, HEADS, -1))[..., length - 1 : 2 * length * length - 1]
    scores = query @ ops.swapaxes(key, -1, -2) + ops.reshape(flat, (1, HEADS, length, -1))[..., :length]
    return ops.softmax(scores / SIZE**0.5, axis=-1) @ value


def in_blocks(encoding, query, key, value, block: int | None):
    """The same by relattn.keras; None: it chooses the block itself."""
    from relattn.keras.attend import Mask
    from relattn.keras.loop import attend
    from relattn.keras.positions import Positions

    positions = Positions(0, 0, query.shape[2], query.shape[2])
    return attend(
        query, key, value, encoding.terms(query, positions), positions, Mask(),
        scale=SIZE**-0.5, dropout=0.0, seed=None, block=block, return_weights=False,
    )[0]  # fmt: skip


def make_step(way: str, length: int):
    """A compiled function without arguments that takes one step and waits for it."""
    import keras
    import numpy as np
    from keras import ops

    from relattn.keras import Attention, RelativeEmbedding

    rng = np.random.default_rng(0)
    encoding, article = RelativeEmbedding(SIZE, length, num_heads=HEADS), Attention(SIZE, length)
    if way == "article":
        article.build()
        table = article.embedding.projection
    else:
        encoding.build()
        table = encoding.relative_keys
    inputs = [ops.convert_to_tensor(rng.normal(size=(1, HEADS, length, SIZE)).astype("float32")) for _ in range(3)]

    def loss(rows, *tensors):
        with keras.StatelessScope(state_mapping=[(table, rows)]):
            if way == "naive":
                output = naive(encoding, *tensors)
            elif way == "article":
                query, key, value = tensors
                output = article(key, value, query)
            else:
                output = in_blocks(encoding, *tensors, None if way == "default" else int(way))
        return ops.sum(output * output)

    arguments = [ops.convert_to_tensor(table.value), *inputs]
    backend = keras.backend.backend()
    if backend == "jax":
        import jax

        gradient = jax.jit(jax.grad(loss, argnums=(0, 1, 2, 3)))
        return lambda: jax.block_until_ready(gradient(*arguments))
    if backend == "tensorflow":
        import tensorflow as tf

        @tf.function(jit_compile=True)
        def gradient(*tensors):
            with tf.GradientTape() as tape:
                tape.watch(tensors)
                total = loss(*tensors)
            return tape.gradient(total, tensors)

        return lambda: [g.numpy() for g in gradient(*arguments)]
    import torch

    leaves = [tensor.detach().requires_grad_() for tensor in arguments]
    return lambda: torch.autograd.grad(loss(*leaves), leaves)


def peak(way: str, length: int) -> float:
    """MB that a step adds to the peak of this process."""
    make_step(way, 256)()  # the libraries load files on first use
    step = make_step(way, length)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    step()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


def ratios(ways: list[str], length: int) -> dict[str, list[float]]:
    """The time of every way over that of the first: medians and quartiles of pairs taken in turn."""
    from measure.studies.study import figures_of  # loads PyTorch, which `peak` must not
    from relattn.cli.bench.timing import interleaved

    floor, *others = (make_step(way, length) for way in ways)
    return {
        way: figures_of(interleaved(floor, step, SECONDS, "cpu").ratio)
        for way, step in zip(ways[1:], others, strict=True)
    }


def main(what: str, *arguments: str) -> None:
    """Print what the command line asks for."""
    if what == "peak":
        way, length = arguments
        print(json.dumps(peak(way, int(length))))
    else:
        length, *ways = arguments
        print(json.dumps(ratios(ways, int(length))))


if __name__ == "__main__":
    main(*sys.argv[1:])
