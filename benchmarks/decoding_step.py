"""One token through a whole layer with a cache: RelativeMultiheadAttention and KVCache at 8192 keys.

Two others run beside it, turn by turn: the layer without encoding, and a layer by hand: four linear maps around
PyTorch's own attention, over buffers into which the new key and value are copied. H = 8, D = 64, no gradients. The
table has ratios to the layer by hand, medians over the turns: `python benchmarks/decoding_step.py [float32|bfloat16]
[threads]`.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import relattn
from relattn.nn import KVCache, RelativeMultiheadAttention

HEADS, WIDTH, HELD, ROOM = 8, 64, 8191, 64
MODEL = HEADS * WIDTH
TURNS = 60

ENCODINGS: dict[str, Callable[[], relattn.RelativeEncoding | None]] = {
    "none": lambda: None,
    "relative": lambda: relattn.RelativeEmbedding(WIDTH, HELD + ROOM, causal=True),
    "relative-heads": lambda: relattn.RelativeEmbedding(WIDTH, HELD + ROOM, num_heads=HEADS, causal=True),
    "shaw": lambda: relattn.ShawEmbedding(WIDTH, 16),
    "transformer-xl": lambda: relattn.TransformerXLEmbedding(HEADS, WIDTH),
    "t5": lambda: relattn.T5Bias(HEADS, bidirectional=False),
    "alibi": lambda: relattn.AlibiBias(HEADS),
    "rope": lambda: relattn.RotaryEmbedding(WIDTH),
}


def by_hand(batch: int, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    """The step that a user would write: the newest key and value take the last slot of the buffers."""
    q_proj, k_proj, v_proj, out_proj = (nn.Linear(MODEL, MODEL).to(dtype) for _ in range(4))
    keys, values = torch.randn(2, batch, HEADS, HELD + ROOM, WIDTH).to(dtype)

    def heads(features: Tensor) -> Tensor:
        return features.unflatten(-1, (HEADS, WIDTH)).transpose(1, 2)

    def step(token: Tensor) -> Tensor:
        query = heads(q_proj(token))
        keys[:, :, HELD : HELD + 1] = heads(k_proj(token))
        values[:, :, HELD : HELD + 1] = heads(v_proj(token))
        attended = F.scaled_dot_product_attention(query, keys[:, :, : HELD + 1], values[:, :, : HELD + 1])
        return out_proj(attended.transpose(1, 2).flatten(2))

    return step


def layer(name: str, batch: int, dtype: torch.dtype) -> tuple[Callable[[Tensor], Tensor], KVCache]:
    """A step of our layer, and its cache with HELD keys and spare room."""
    attention = RelativeMultiheadAttention(MODEL, HEADS, ENCODINGS[name]()).to(dtype)
    cache = KVCache()
    key, value = torch.randn(2, batch, HEADS, HELD, WIDTH).to(dtype)
    cache.append(key, value)
    return lambda token: attention(token, is_causal=True, cache=cache), cache


def measured(name: str, batch: int, dtype: torch.dtype) -> tuple[float, float]:
    """(time of our step, time of the one by hand), medians in seconds."""
    hand, (ours, cache) = by_hand(batch, dtype), layer(name, batch, dtype)
    token = torch.randn(batch, 1, MODEL).to(dtype)
    times: dict[str, list[float]] = {"ours": [], "by hand": []}
    for turn in range(TURNS + 5):
        for who, step in (("by hand", hand), ("ours", ours)):
            start = time.perf_counter()
            step(token)
            if turn >= 5:  # the first calls fill buffers and caches
                times[who].append(time.perf_counter() - start)
        cache.truncate(HELD)
    return statistics.median(times["ours"]), statistics.median(times["by hand"])


def main() -> None:
    """Print the table."""
    dtype = getattr(torch, sys.argv[1] if len(sys.argv) > 1 else "float32")
    torch.set_num_threads(int(sys.argv[2]) if len(sys.argv) > 2 else 2)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {dtype}, times / SDPA and four linear maps")
    print("| encoding | B=1 | B=4 |\n|---|---:|---:|")
    with torch.no_grad():
        for name in ENCODINGS:
            cells = []
            for batch in (1, 4):
                ours, hand = measured(name, batch, dtype)
                cells.append(f"{ours / hand:.2f}")
            print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
