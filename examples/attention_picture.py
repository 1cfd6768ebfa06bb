"""Draw what the heads of a trained layer look at: every pair of notes, and the average by offset.

    python examples/attention_picture.py [--encoding rope] [--steps 200] [--out attention.png]

It trains the model of decoder_block.py. There the next note is always the note from 8 places before. For a query this
is offset -7, and a head that has learned the rule looks there.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from decoder_block import ENCODINGS, HEADS, MOTIF, TuneModel, train, tunes
from torch import Tensor

import relattn

LENGTH, FARTHEST = 32, 20


@torch.no_grad()
def weights_of(model: TuneModel, notes: Tensor) -> Tensor:
    """softmax(S) of the model's attention on these notes, [B, heads, L, L]."""
    attention = model.block.attention
    x = model.block.norm1(model.embedding(notes))
    query, key, value = (
        projection(x).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        for projection in (attention.q_proj, attention.k_proj, attention.v_proj)
    )
    return relattn.attention_weights(query, key, value, is_causal=True, encoding=attention.encoding)


def by_offset(weights: Tensor) -> Tensor:
    """The mean weight at every offset -FARTHEST..0, [heads, FARTHEST + 1]."""
    diagonals = [weights.diagonal(offset, dim1=-2, dim2=-1).mean(dim=(0, -1)) for offset in range(-FARTHEST, 1)]
    return torch.stack(diagonals, dim=-1)


def draw(weights: Tensor, name: str, path: Path) -> None:
    """A row of matrices, one per head, above the mean weight by offset."""
    figure, axes = plt.subplots(2, HEADS, figsize=(11, 4.6), height_ratios=(3, 1.2), layout="constrained")
    figure.suptitle(f"encoding {name}: attention weights of {HEADS} heads", fontweight="bold")
    means, offsets = by_offset(weights).tolist(), list(range(-FARTHEST, 1))
    for head in range(HEADS):
        pairs, bars = axes[:, head]
        pairs.imshow(weights[0, head].numpy(), cmap="Blues", vmin=0, vmax=1)
        pairs.set_title(f"head {head}", fontsize=10)
        pairs.set_xlabel("key")
        colours = ["#d1602c" if offset == 1 - MOTIF else "#1f6fb2" for offset in offsets]
        bars.bar(offsets, means[head], color=colours)
        bars.set_ylim(0, 1)
        bars.set_xticks([-20, -15, 1 - MOTIF, 0])
        bars.set_xlabel("offset")
        bars.spines[["top", "right"]].set_visible(False)
    axes[0, 0].set_ylabel("query")
    axes[1, 0].set_ylabel("mean weight")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main() -> None:
    """Train, look, draw."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--encoding", choices=ENCODINGS, default="shaw")
    parser.add_argument("--steps", type=int, default=200, help="of training (default: 200)")
    parser.add_argument("--out", type=Path, default=Path("attention.png"), help="the picture (default: attention.png)")
    options = parser.parse_args()
    torch.manual_seed(0)
    model = TuneModel(ENCODINGS[options.encoding]())
    train(model, options.steps)
    weights = weights_of(model, tunes(16, LENGTH))
    draw(weights, options.encoding, options.out)
    means = by_offset(weights)
    for head in range(HEADS):
        offset = int(means[head].argmax()) - FARTHEST
        print(f"head {head} looks at offset {offset:+d} most, with {means[head].max():.0%} of its weight")
    print(f"wrote {options.out}")


if __name__ == "__main__":
    main()
