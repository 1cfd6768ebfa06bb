"""Time and memory of a training step of attention with relative keys under Keras, in blocks and by the naive formula.

    KERAS_BACKEND=tensorflow python benchmarks/keras_memory.py [--lengths 512 1024 2048 4096] [--blocks 64 128 256]

Beside blocks of several sizes stands `article`: relattn.keras.Attention, with one table for all heads, in blocks that
it chooses itself. The naive formula in keras.ops is: S = Q E^T, arranged by a padded reshape, added to Q K^T, softmax,
and everything kept for the gradient. A step is one forward and one backward pass of B = 1, 4 heads of width 64,
float32, compiled as Keras compiles its own (tf.function with XLA, jax.jit; torch runs as it is). Peaks are those of a
separate process, above its memory before the step. They count live tensors: glibc is told to give freed memory back
(MALLOC_MMAP_THRESHOLD_), because otherwise it keeps some 200 MB of a step in blocks on torch. Times are the best of
several steps, taken in turns in one process.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time

HEADS, SIZE = 4, 64


def naive(encoding, query, key, value, causal: bool):
    """softmax((Q K^T + S) / sqrt(D)) V, every step a tensor of all pairs."""
    from keras import ops

    length = query.shape[2]
    rows = encoding.relative_keys.value
    rows = ops.pad(rows[:, rows.shape[1] // 2 - length + 1 : rows.shape[1] // 2 + length], [(0, 0), (0, 1), (0, 0)])
    products = query @ ops.swapaxes(rows, -1, -2)
    flat = ops.reshape(products, (1, HEADS, -1))[..., length - 1 : 2 * length * length - 1]
    scores = query @ ops.swapaxes(key, -1, -2) + ops.reshape(flat, (1, HEADS, length, -1))[..., :length]
    if causal:
        positions = ops.arange(length)
        scores = ops.where(positions[:, None] >= positions, scores, -1e9)
    return ops.softmax(scores / SIZE**0.5, axis=-1) @ value


def in_blocks(encoding, query, key, value, causal: bool, block: int | None):
    """The same by relattn.keras; None: it chooses the block itself."""
    from relattn.keras.attend import Mask
    from relattn.keras.loop import attend
    from relattn.keras.positions import Positions

    positions = Positions(0, 0, query.shape[2], query.shape[2], highest=0 if causal else None)
    return attend(
        query, key, value, encoding.terms(query, positions), positions, Mask(),
        scale=SIZE**-0.5, dropout=0.0, seed=None, block=block, return_weights=False,
    )[0]  # fmt: skip


def make_step(way: str, length: int, causal: bool):
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
                output = naive(encoding, *tensors, causal)
            elif way == "article":
                query, key, value = tensors
                output = article(key, value, query, use_causal_mask=causal)
            else:
                output = in_blocks(encoding, *tensors, causal, None if way == "default" else int(way))
        return ops.sum(output * output)

    arguments = [ops.convert_to_tensor(table.value), *inputs]
    backend = keras.backend.backend()
    if backend == "jax":
        import jax

        gradient = jax.jit(jax.grad(loss, argnums=(0, 1, 2, 3)))
        return lambda: jax.block_until_ready(gradient(*arguments))
    if backend == "tensorflow":
        import tensorflow as tf

        @tf.function(jit_compile=os.environ.get("XLA", "1") == "1")
        def gradient(*tensors):
            with tf.GradientTape() as tape:
                tape.watch(tensors)
                total = loss(*tensors)
            return tape.gradient(total, tensors)

        return lambda: [g.numpy() for g in gradient(*arguments)]
    import torch

    leaves = [tensor.detach().requires_grad_() for tensor in arguments]
    return lambda: torch.autograd.grad(loss(*leaves), leaves)


def peak(way: str, length: int, causal: bool) -> float:
    """MB that a step adds to the peak of this process."""
    make_step(way, 256, causal)()  # the libraries load files on first use
    step = make_step(way, length, causal)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    step()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


def seconds(ways: list[str], length: int, causal: bool, repeats: int) -> dict[str, float]:
    """The best time of a step of every way, in turns."""
    steps = {way: make_step(way, length, causal) for way in ways}
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(repeats + 1):
        for way, step in steps.items():
            start = time.perf_counter()
            step()
            best[way] = min(best[way], time.perf_counter() - start)
    return best


def in_a_process(*arguments: str):
    """The output of this script with those arguments, in a separate process."""
    variables = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(2**20)} if "--peak" in arguments else None
    command = [sys.executable, __file__, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=variables)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Every way at every length, each beside the naive formula."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--lengths", type=int, nargs="+", default=[256, 512, 1024, 2048, 4096])
    parser.add_argument("--blocks", nargs="+", default=["64", "128", "256"])
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--peak", nargs=2, metavar=("WAY", "LENGTH"), help="only this peak, as JSON")
    parser.add_argument("--seconds", type=int, metavar="LENGTH", help="only the times at this length, as JSON")
    options = parser.parse_args()
    ways = ["naive", "article", *options.blocks]
    if options.peak:
        return print(json.dumps(peak(options.peak[0], int(options.peak[1]), options.causal)))
    if options.seconds:
        return print(json.dumps(seconds(ways, options.seconds, options.causal, options.repeats)))
    causal = ["--causal"] if options.causal else []
    print(
        f"{os.environ.get('KERAS_BACKEND', 'tensorflow')}: time and peak of a step, and the naive formula's over them"
    )
    for length in options.lengths:
        arguments = ["--seconds", str(length), "--repeats", str(options.repeats), "--blocks", *options.blocks, *causal]
        times = in_a_process(*arguments)
        peaks = {way: in_a_process("--peak", way, str(length), *causal) for way in ways}
        for way in ways:
            faster, smaller = times["naive"] / times[way], peaks["naive"] / max(peaks[way], 1e-9)
            figures = f"{times[way]:7.3f} s ({faster:4.2f}x)  {peaks[way]:8.1f} MB ({smaller:5.1f}x)"
            print(f"  L={length:5d} {way:>6s}  {figures}")


if __name__ == "__main__":
    main()
