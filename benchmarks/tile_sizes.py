"""How large should the tiles of the tiled backend be? The sweep from which `relattn.backends.tiled.sizes` was chosen.

Forward and training step of one unclipped table, float32, D = 64, at every tile size, turn by turn with PyTorch's own
attention without any encoding. `python benchmarks/tile_sizes.py` prints, for each shape, the ratios of the best sizes
and of the worst.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from unittest import mock

import torch
import torch.nn.functional as F

import relattn
from relattn.backends.tiled import operator
from relattn.backends.tiled.sizes import TileSizes

WIDTH = 64
QUERIES, KEYS, PAIRS = (64, 128, 256), (512, 1024, 2048, 4096), (2**18, 2**19, 2**20, 2**21)
SHAPES = ((1, 8, 2048, False), (1, 8, 4096, False), (1, 8, 4096, True), (1, 1, 4096, False), (4, 4, 1024, True))


def sizes(heads: int, length: int) -> list[TileSizes]:
    """Every size of the sweep that fits a shape."""
    found = []
    for queries, keys, pairs in itertools.product(QUERIES, KEYS, PAIRS):
        queries, keys = min(queries, length), min(keys, length)
        found.append(TileSizes(queries, keys, min(max(pairs // (queries * keys), 1), heads)))
    return list(dict.fromkeys(found))


class Shape:
    """Tensors of one shape, and one step of either side."""

    def __init__(self, batch: int, heads: int, length: int, causal: bool):
        self.inputs = [torch.randn(batch, heads, length, WIDTH, requires_grad=True) for _ in range(3)]
        self.upstream = torch.randn(batch, heads, length, WIDTH)
        self.encoding = relattn.RelativeEmbedding(WIDTH, length, causal=causal)
        self.causal = causal

    def ratio(self, size: TileSizes, training: bool) -> float:
        """The time of a step with these tiles divided by that of the floor beside it."""
        with mock.patch.object(operator, "tile_sizes", lambda problem: size):
            ours = self._seconds(training, tiled=True)
        return ours / self._seconds(training, tiled=False)

    def _seconds(self, training: bool, tiled: bool) -> float:
        start = time.perf_counter()
        with torch.set_grad_enabled(training):
            if tiled:
                output = relattn.relative_attention(
                    *self.inputs, is_causal=self.causal, encoding=self.encoding, backend="tiled"
                )
            else:
                output = F.scaled_dot_product_attention(*self.inputs, is_causal=self.causal)
            if training:
                output.backward(self.upstream)
        return time.perf_counter() - start


def main() -> None:
    """Sweep every shape and print its best and worst sizes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="for each shape (default: 60)")
    seconds = parser.parse_args().seconds
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads\n")
    print("| B, H, L | queries x keys x heads | forward | training step |\n|---|---|---|---|")
    for batch, heads, length, causal in SHAPES:
        shape, candidates = Shape(batch, heads, length, causal), sizes(heads, length)
        ratios = {(size, training): [] for size in candidates for training in (False, True)}
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            for size, training in ratios:
                ratios[size, training].append(shape.ratio(size, training))
        medians = {key: statistics.median(found) for key, found in ratios.items()}
        ranked = sorted(candidates, key=lambda size: medians[size, False] + medians[size, True])
        for size in [*ranked[:4], ranked[-1]]:
            name = f"{batch}, {heads}, {length}{', causal' if causal else ''}"
            figures = f"{medians[size, False]:.2f} | {medians[size, True]:.2f}"
            print(f"| {name} | {' x '.join(map(str, size))} | {figures} |", flush=True)


if __name__ == "__main__":
    main()
