"""A decoder block with relative attention: it learns to repeat a tune, and goes on through a cache.

    python examples/decoder_block.py [--encoding rope] [--steps 200] [--max-length 24]

A tune is a motif of 8 random notes, repeated. After the first motif every further note is known: it is the note from 8
places before. No position is added to the notes, so only the relative encoding can tell where "8 before" is. The model
trains on tunes of 24 notes and then continues new motifs to 64. With --max-length the cache rolls, and no query looks
further back than that.
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import relattn
from relattn.nn import KVCache, RelativeMultiheadAttention

NOTES, MOTIF = 12, 8
WIDTH, HEADS = 64, 4
HEAD_DIM = WIDTH // HEADS
TRAINED_LENGTH, FULL_LENGTH = 24, 64

ENCODINGS = {
    "none": lambda: None,
    "alibi": lambda: relattn.AlibiBias(HEADS),
    "rope": lambda: relattn.RotaryEmbedding(HEAD_DIM),
    "shaw": lambda: relattn.ShawEmbedding(HEAD_DIM, max_distance=(16, 0)),
    "t5": lambda: relattn.T5Bias(HEADS, bidirectional=False),
}


class DecoderBlock(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)): the usual block, with an encoding in its attention."""

    def __init__(self, width: int, heads: int, encoding: relattn.RelativeEncoding | None) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = RelativeMultiheadAttention(width, heads, encoding)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor, cache: KVCache | None = None) -> Tensor:
        """x [B, L, width]; with a cache, the tokens that follow those in the cache."""
        x = x + self.attention(self.norm1(x), is_causal=True, cache=cache)
        return x + self.mlp(self.norm2(x))


class TuneModel(nn.Module):
    """Notes in, a score for every possible next note out."""

    def __init__(self, encoding: relattn.RelativeEncoding | None) -> None:
        super().__init__()
        self.embedding = nn.Embedding(NOTES, WIDTH)
        self.block = DecoderBlock(WIDTH, HEADS, encoding)
        self.head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, NOTES))

    def forward(self, notes: Tensor, cache: KVCache | None = None) -> Tensor:
        """notes [B, L] -> scores [B, L, NOTES]."""
        return self.head(self.block(self.embedding(notes), cache))


def tunes(count: int, length: int) -> Tensor:
    """Random motifs, repeated: [count, length]."""
    motifs = torch.randint(NOTES, (count, MOTIF))
    return motifs.repeat(1, -(-length // MOTIF))[:, :length]


def train(model: TuneModel, steps: int) -> float:
    """Train on the notes after the first motif, which cannot be guessed; returns the last loss."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loss = torch.zeros(())
    for _ in range(steps):
        batch = tunes(32, TRAINED_LENGTH)
        scores = model(batch[:, :-1])[:, MOTIF - 1 :]
        loss = F.cross_entropy(scores.flatten(0, 1), batch[:, MOTIF:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


@torch.no_grad()
def continue_tunes(model: TuneModel, motifs: Tensor, length: int, max_length: int | None) -> Tensor:
    """The most likely continuation to `length` notes: the motif goes through the cache at once, then note by note."""
    cache = KVCache(max_length)
    notes = motifs
    scores = model(motifs, cache)
    while notes.shape[1] < length:
        newest = scores[:, -1:].argmax(dim=-1)
        notes = torch.cat([notes, newest], dim=1)
        scores = model(newest, cache)
    return notes


def main() -> None:
    """Train, continue, compare."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--encoding", choices=ENCODINGS, default="shaw")
    parser.add_argument("--steps", type=int, default=200, help="of training (default: 200)")
    parser.add_argument("--max-length", type=int, help="of a rolling cache (default: it keeps every note)")
    options = parser.parse_args()
    torch.manual_seed(0)
    model = TuneModel(ENCODINGS[options.encoding]())
    print(f"{options.encoding}: trained on {TRAINED_LENGTH} notes to a loss of {train(model, options.steps):.3f}")

    expected = tunes(16, FULL_LENGTH)
    continued = continue_tunes(model, expected[:, :MOTIF], FULL_LENGTH, options.max_length)
    print("motif       ", *expected[0, :MOTIF].tolist())
    print("continuation", *continued[0, MOTIF : 4 * MOTIF].tolist(), "...")
    right = (continued == expected)[:, MOTIF:].float()
    print(f"right up to note {TRAINED_LENGTH}: {right[:, : TRAINED_LENGTH - MOTIF].mean():.0%}")
    print(f"right from there to note {FULL_LENGTH}: {right[:, TRAINED_LENGTH - MOTIF :].mean():.0%}")


if __name__ == "__main__":
    main()
