"""Draws with_and_without.png: a head without positions, and one with relative ones, after the same training.

    python docs/figures/draw_attention.py

The model and the task are those of examples/decoder_block.py: the next note is always the one that sounded 8 places
before, so a head that has understood looks at offset -7. Two encodings, the same seed, 200 steps each.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER.parents[1] / "examples"))

from attention_picture import LENGTH, weights_of  # noqa: E402
from decoder_block import ENCODINGS, TuneModel, train, tunes  # noqa: E402

SHOWN = {"none": "without positions", "shaw": "with relative positions"}
STEPS = 200


def main() -> None:
    """Train both, draw head 0 of each."""
    figure, axes = plt.subplots(1, 2, figsize=(6.2, 2.7), layout="constrained", sharey=True)
    for axis, (name, title) in zip(axes, SHOWN.items(), strict=True):
        torch.manual_seed(0)
        model = TuneModel(ENCODINGS[name]())
        loss = train(model, STEPS)
        weights = weights_of(model, tunes(16, LENGTH))[0, 0]
        axis.imshow(weights.numpy(), cmap="Blues", vmin=0, vmax=1)
        axis.set_title(f"{title}: loss {loss:.2f}", fontsize=10)
        axis.set_xlabel("key: the note looked at")
    axes[0].set_ylabel("query: the note that looks")
    figure.savefig(FOLDER / "with_and_without.png", dpi=100)


if __name__ == "__main__":
    main()
