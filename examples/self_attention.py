"""Self-attention with any encoding: the output, the backend that computes it, and what is relative about it.

    python examples/self_attention.py                     every encoding
    python examples/self_attention.py --encoding shaw     one of them

Moving all positions together, or passing the tokens in chunks, may change only the last bits.
"""

from __future__ import annotations

import argparse

import torch

import relattn
from relattn.nn import KVCache, RelativeMultiheadAttention

BATCH, LENGTH, WIDTH, HEADS = 2, 48, 64, 4
HEAD_DIM = WIDTH // HEADS

ENCODINGS = {
    "relative": lambda: relattn.RelativeEmbedding(HEAD_DIM, max_length=LENGTH, num_heads=HEADS, causal=True),
    "shaw": lambda: relattn.ShawEmbedding(HEAD_DIM, max_distance=8),
    "transformer_xl": lambda: relattn.TransformerXLEmbedding(HEADS, HEAD_DIM),
    "t5": lambda: relattn.T5Bias(HEADS, bidirectional=False),
    "alibi": lambda: relattn.AlibiBias(HEADS),
    "rope": lambda: relattn.RotaryEmbedding(HEAD_DIM),
    "rope+t5": lambda: relattn.RotaryEmbedding(HEAD_DIM) + relattn.T5Bias(HEADS, bidirectional=False),
}


def show(name: str) -> None:
    """Attend to random tokens with one encoding, and measure changes that should make no difference."""
    torch.manual_seed(0)
    layer = RelativeMultiheadAttention(WIDTH, HEADS, ENCODINGS[name]())
    tokens = torch.randn(BATCH, LENGTH, WIDTH)

    output = layer(tokens, is_causal=True)
    moved = layer(tokens, is_causal=True, query_position=1000, key_position=1000)
    cache = KVCache()
    chunks = torch.cat([layer(chunk, is_causal=True, cache=cache) for chunk in tokens.split([17, 1, 30], dim=1)], dim=1)

    query, key, value = torch.randn(3, BATCH, HEADS, LENGTH, HEAD_DIM).unbind(0)
    choice = relattn.explain(query, key, value, is_causal=True, encoding=layer.encoding)
    print(f"{name}: {tuple(tokens.shape)} -> {tuple(output.shape)}, computed by {choice.chosen}")
    print(f"  moved by 1000 positions, the output changes by {(moved - output).abs().max():.0e}")
    print(f"  in chunks of 17, 1 and 30 through a cache, by  {(chunks - output).abs().max():.0e}")


def main() -> None:
    """Show one encoding, or all."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--encoding", choices=ENCODINGS, help="one of them; all unless given")
    chosen = parser.parse_args().encoding
    with torch.no_grad():
        for name in [chosen] if chosen else ENCODINGS:
            show(name)


if __name__ == "__main__":
    main()
