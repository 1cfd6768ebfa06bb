"""What relattn adds to the time of one small call: B=1, H=4, L=64, D=32, float32, one thread, forward without gradient.

Every encoding's call is timed beside the same mathematics written bare in PyTorch (no checks, no encoding object, its
table at hand), turn by turn; the overhead is the difference of the medians. `python benchmarks/small_call.py` prints a
Markdown table.
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

BATCH, HEADS, LENGTH, WIDTH = 1, 4, 64, 32
ROUNDS = 2000


def bare_tables(relative_keys: Tensor | None, bias: Tensor | None) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Causal attention with a row of keys or a bias for each of the LENGTH + 1 diagonals up to the first future one."""
    future = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)

    def call(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        query = query * WIDTH**-0.5
        scores = query @ key.transpose(-1, -2)
        if relative_keys is not None:
            scores = scores + diagonals(query @ relative_keys.transpose(-1, -2))
        if bias is not None:
            scores = scores + diagonals(bias.unsqueeze(1).expand(-1, LENGTH, -1).contiguous())
        return scores.masked_fill(future, -torch.inf).softmax(-1) @ value

    return call


def diagonals(strip: Tensor) -> Tensor:
    """S[i, j] = strip[i, j - i + LENGTH - 1], by a stride."""
    return strip.as_strided((*strip.shape[:-1], LENGTH), (*strip.stride()[:-2], LENGTH, 1), LENGTH - 1)


def bare_sdpa(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """PyTorch's own causal attention."""
    return F.scaled_dot_product_attention(query, key, value, is_causal=True)


def main() -> None:
    """Time every encoding beside its bare form and print the table."""
    torch.set_num_threads(1)
    rows, bias = torch.randn(1, LENGTH + 1, WIDTH), torch.randn(HEADS, LENGTH + 1)
    keys_only = bare_tables(rows[0], None)
    cases = {
        "none": (None, bare_sdpa),
        "relative": (relattn.RelativeEmbedding(WIDTH, LENGTH, causal=True), keys_only),
        "shaw, keys": (relattn.ShawEmbedding(WIDTH, 16, values=False), keys_only),
        "transformer-xl": (relattn.TransformerXLEmbedding(HEADS, WIDTH), keys_only),
        "t5": (relattn.T5Bias(HEADS, bidirectional=False), bare_tables(None, bias)),
        "alibi": (relattn.AlibiBias(HEADS), bare_tables(None, bias)),
        "rotary": (relattn.RotaryEmbedding(WIDTH), bare_sdpa),
    }
    inputs = [torch.randn(BATCH, HEADS, LENGTH, WIDTH) for _ in range(3)]
    print(f"torch {torch.__version__}, {platform.processor() or platform.machine()}, one thread, {ROUNDS} rounds\n")
    print("| encoding | bare, us | relattn, us | overhead, us |\n|---|---|---|---|")
    for name, (encoding, bare) in cases.items():
        ours, theirs = [], []
        with torch.no_grad():
            for _ in range(ROUNDS):
                theirs.append(timed(lambda bare=bare: bare(*inputs)))
                ours.append(timed(lambda e=encoding: relattn.relative_attention(*inputs, is_causal=True, encoding=e)))
        bare_us, ours_us = statistics.median(theirs), statistics.median(ours)
        print(f"| {name} | {bare_us:.0f} | {ours_us:.0f} | {ours_us - bare_us:.0f} |")


def timed(call: Callable[[], object]) -> float:
    """Microseconds of processor time of one call."""
    start = time.thread_time_ns()
    call()
    return (time.thread_time_ns() - start) / 1000


if __name__ == "__main__":
    main()
