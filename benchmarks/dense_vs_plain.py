"""The dense backend beside the plain PyTorch formula (matmul, stride, softmax, matmul), float32, one unclipped table.

The plain formula is what a careful user writes by hand: for causal attention Huang et al.'s pad and reshape over the L
past rows, otherwise a strided view over all 2 L - 1. Both are checked to agree, then timed turn by turn; the figure is
the ratio of the medians. `python benchmarks/dense_vs_plain.py` prints a Markdown table.
"""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

import relattn

HEADS, WIDTH = 8, 64
LENGTHS = (64, 256, 512, 1024, 2048)
SECONDS_PER_CASE = 3.0


def plain(query: Tensor, key: Tensor, value: Tensor, relative_keys: Tensor, causal: bool) -> Tensor:
    """softmax((Q K^T + S_rel) / sqrt(D)) V."""
    length = query.shape[2]
    products = query @ relative_keys.transpose(-1, -2)
    if causal:
        s_rel = F.pad(products, (1, 0)).flatten(-2).unflatten(-1, (length + 1, length))[..., 1:, :]
    else:
        stride = (*products.stride()[:-2], products.shape[-1] - 1, 1)
        s_rel = products.as_strided((*products.shape[:-1], length), stride, length - 1)
    scores = (query @ key.transpose(-1, -2) + s_rel) / WIDTH**0.5
    if causal:
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        scores = scores.masked_fill(future, -torch.inf)
    return scores.softmax(-1) @ value


def main() -> None:
    """Check, time and print every case."""
    torch.set_num_threads(1)
    machine = platform.processor() or platform.machine()
    print(f"torch {torch.__version__}, {machine}, one thread, B=1 H={HEADS} D={WIDTH}\n")
    print("| L | causal | forward, dense / plain | training step, dense / plain |\n|---|---|---|---|")
    for length in LENGTHS:
        for causal in (False, True):
            ratios = [ratio(length, causal, training) for training in (False, True)]
            print(f"| {length} | {'yes' if causal else 'no'} | {ratios[0]:.2f} | {ratios[1]:.2f} |", flush=True)


def ratio(length: int, causal: bool, training: bool) -> float:
    """Median time of the dense backend over that of the plain formula, measured turn by turn."""
    inputs = [torch.randn(1, HEADS, length, WIDTH, requires_grad=training) for _ in range(3)]
    encoding = relattn.RelativeEmbedding(WIDTH, length, causal=causal)
    calls: list[Callable[[], Tensor]] = [
        lambda: relattn.relative_attention(*inputs, is_causal=causal, encoding=encoding, backend="dense"),
        lambda: plain(*inputs, encoding.relative_keys, causal),
    ]
    torch.testing.assert_close(calls[0](), calls[1](), rtol=1e-4, atol=1e-5)
    times: list[list[float]] = [[], []]
    start = time.perf_counter()
    while time.perf_counter() - start < SECONDS_PER_CASE or len(times[0]) < 5:
        for call, taken in zip(calls, times, strict=True):
            before = time.thread_time_ns()
            with torch.set_grad_enabled(training):
                output = call()
                if training:
                    output.sum().backward()
            taken.append(time.thread_time_ns() - before)
    return statistics.median(times[0]) / statistics.median(times[1])


if __name__ == "__main__":
    main()
