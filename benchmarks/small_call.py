"""What relattn adds to the time of one small call: B=1, H=4, L=64, D=32, float32, one thread, forward without gradient.

Every encoding's call is timed beside the same mathematics in bare PyTorch (no checks, no encoding object), turn by
turn, after a check that both agree. For each the time is taken below which 2 % of the calls stay: the time of an
undisturbed machine. The overhead is the difference. `python benchmarks/small_call.py` prints a table.
"""

from __future__ import annotations

import math
import platform
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

import relattn

BATCH, HEADS, LENGTH, WIDTH = 1, 4, 64, 32
ROUNDS = 1000


Call = Callable[[Tensor, Tensor, Tensor], Tensor]
FUTURE = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
SCALE = WIDTH**-0.5


def diagonals(strip: Tensor) -> Tensor:
    """S[i, j] = strip[i, j - i + LENGTH - 1], by a stride."""
    return strip.as_strided((*strip.shape[:-1], LENGTH), (*strip.stride()[:-2], LENGTH, 1), LENGTH - 1)


def attend(scores: Tensor, value: Tensor) -> Tensor:
    """softmax over the past, times the values."""
    return scores.masked_fill(FUTURE, -torch.inf).softmax(-1) @ value


def bare_keys(relative_keys: Tensor) -> Call:
    """Relative keys [LENGTH + 1, WIDTH], the last row for the first future offset."""

    def call(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        query = query * SCALE
        return attend(query @ key.transpose(-1, -2) + diagonals(query @ relative_keys.transpose(-1, -2)), value)

    return call


def bare_bias(bias: Callable[[Tensor], Tensor]) -> Call:
    """A bias [HEADS, LENGTH + 1] that `bias` makes from the offsets."""

    def call(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        rows = bias(torch.arange(-(LENGTH - 1), 2))
        strip = rows.unsqueeze(1).expand(-1, LENGTH, -1).contiguous()
        return attend(query * SCALE @ key.transpose(-1, -2) + diagonals(strip), value)

    return call


def t5_bias(encoding: relattn.T5Bias) -> Callable[[Tensor], Tensor]:
    """The bias of each offset's bucket."""

    def bias(offsets: Tensor) -> Tensor:
        distance = (-offsets).clamp(min=0)
        ratio = torch.log(distance.clamp(min=16).float() / 16) / math.log(128 / 16)
        bucket = torch.where(distance < 16, distance, (16 + (ratio * 16).long()).clamp(max=31))
        return F.embedding(bucket, encoding.bias).transpose(0, 1)

    return bias


def alibi_bias(offsets: Tensor) -> Tensor:
    """-slope * |d|."""
    slopes = torch.logspace(-8 / HEADS, -8, HEADS, base=2.0)
    return -slopes.unsqueeze(-1) * offsets.abs()


def bare_transformer_xl(encoding: relattn.TransformerXLEmbedding) -> Call:
    """Projected sinusoids, u and v."""

    def call(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        distances = -torch.arange(-(LENGTH - 1), 2).double()
        width = HEADS * WIDTH
        inverse = torch.logspace(0, -(width - 2) / width, width // 2, base=10000.0, dtype=torch.float64)
        angles = distances.unsqueeze(-1) * inverse
        rows = encoding.linear_pos(torch.cat([angles.sin(), angles.cos()], -1).float())
        rows = rows.unflatten(-1, (HEADS, WIDTH)).transpose(0, 1)
        content = (query + encoding.pos_bias_u.unsqueeze(1)) * SCALE
        relative = (query + encoding.pos_bias_v.unsqueeze(1)) * SCALE
        return attend(content @ key.transpose(-1, -2) + diagonals(relative @ rows.transpose(-1, -2)), value)

    return call


def rotated(features: Tensor) -> Tensor:
    """Every pair of features turned by its position."""
    inverse = torch.logspace(0, -(WIDTH - 2) / WIDTH, WIDTH // 2, base=10000.0, dtype=torch.float64)
    angles = torch.arange(LENGTH).double().unsqueeze(-1) * inverse
    cos, sin = angles.cos().float(), angles.sin().float()
    first, second = features.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def bare_rotary(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Queries and keys rotated, then PyTorch's own causal attention."""
    return bare_sdpa(rotated(query), rotated(key), value)


def bare_sdpa(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """PyTorch's own causal attention."""
    return F.scaled_dot_product_attention(query, key, value, is_causal=True)


def main() -> None:
    """Time every encoding beside its bare form and print the table."""
    torch.set_num_threads(1)
    relative = relattn.RelativeEmbedding(WIDTH, LENGTH, causal=True)
    shaw = relattn.ShawEmbedding(WIDTH, 16, values=False)
    clipped = shaw.relative_keys[0, torch.arange(-(LENGTH - 1), 2).clamp(-16, 16) + 16].detach()
    transformer_xl = relattn.TransformerXLEmbedding(HEADS, WIDTH)
    t5 = relattn.T5Bias(HEADS, bidirectional=False)
    cases: dict[str, tuple[relattn.RelativeEncoding | None, Call]] = {
        "none": (None, bare_sdpa),
        "relative": (relative, bare_keys(F.pad(relative.relative_keys[0].detach(), (0, 0, 0, 1)))),
        "shaw, keys": (shaw, bare_keys(clipped)),
        "transformer-xl": (transformer_xl, bare_transformer_xl(transformer_xl)),
        "t5": (t5, bare_bias(t5_bias(t5))),
        "alibi": (relattn.AlibiBias(HEADS), bare_bias(alibi_bias)),
        "rotary": (relattn.RotaryEmbedding(WIDTH), bare_rotary),
    }
    inputs = [torch.randn(BATCH, HEADS, LENGTH, WIDTH) for _ in range(3)]
    print(f"torch {torch.__version__}, {platform.processor() or platform.machine()}, one thread, {ROUNDS} rounds\n")
    print("| encoding | bare, us | relattn, us | overhead, us |\n|---|---|---|---|")
    for name, (encoding, bare) in cases.items():
        ours, theirs = [], []
        with torch.no_grad():
            answer = relattn.relative_attention(*inputs, is_causal=True, encoding=encoding)
            torch.testing.assert_close(answer, bare(*inputs), rtol=1e-4, atol=1e-5)
            for _ in range(ROUNDS):
                theirs.append(timed(lambda bare=bare: bare(*inputs)))
                ours.append(timed(lambda e=encoding: relattn.relative_attention(*inputs, is_causal=True, encoding=e)))
        bare_us, ours_us = (statistics.quantiles(times, n=50)[0] for times in (theirs, ours))
        print(f"| {name} | {bare_us:.0f} | {ours_us:.0f} | {ours_us - bare_us:.0f} |")


def timed(call: Callable[[], object]) -> float:
    """Microseconds of processor time of one call."""
    start = time.thread_time_ns()
    call()
    return (time.thread_time_ns() - start) / 1000


if __name__ == "__main__":
    main()
