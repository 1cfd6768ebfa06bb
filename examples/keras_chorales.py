"""A small Keras model of Bach's chorales with relative attention: one script for TensorFlow, JAX and PyTorch.

    KERAS_BACKEND=tensorflow python examples/keras_chorales.py [--minutes 1 | --steps 200] [--encoding relative]
    KERAS_BACKEND=jax        python examples/keras_chorales.py ...

The four voices are interleaved (soprano, alto, tenor, bass, soprano, ...), one token per 16th note, and a causal model
predicts each token from the earlier ones. No position is added to the tokens: only the encoding in its attention
depends on their order. It needs music21, whose corpus holds the chorales: pip install '.[keras]' ./lab in a clone.
"""

from __future__ import annotations

import argparse
import math
import time

import keras
import numpy as np

import relattn.keras as rk
from relattn_lab.voices import TrainingWindows, Vocabulary, evaluation_windows, load_chorales
from relattn_lab.windows import IGNORED

LENGTH, WIDTH, HEADS, LAYERS = 256, 64, 4, 2
HEAD_SIZE = WIDTH // HEADS

ENCODINGS = {
    "none": lambda: None,
    "relative": lambda: rk.RelativeEmbedding(HEAD_SIZE, LENGTH, num_heads=HEADS, causal=True),
    "shaw": lambda: rk.ShawEmbedding(HEAD_SIZE, (64, 0)),
    "transformer_xl": lambda: rk.TransformerXLEmbedding(HEADS, HEAD_SIZE),
    "t5": lambda: rk.T5Bias(HEADS, bidirectional=False),
    "alibi": lambda: rk.AlibiBias(HEADS),
    "rope": lambda: rk.RotaryEmbedding(HEAD_SIZE),
}


def make_model(num_tokens: int, encoding: str) -> keras.Model:
    """Tokens (B, L) in, a score for every possible next token (B, L, num_tokens) out."""
    tokens = keras.Input((LENGTH,), dtype="int32")
    x = keras.layers.Embedding(num_tokens, WIDTH)(tokens)
    for _ in range(LAYERS):
        h = keras.layers.LayerNormalization()(x)
        attention = rk.RelativeMultiHeadAttention(HEADS, HEAD_SIZE, encoding=ENCODINGS[encoding]())
        x = x + attention(h, h, use_causal_mask=True)
        h = keras.layers.LayerNormalization()(x)
        h = keras.layers.Dense(4 * WIDTH, activation="gelu")(h)
        x = x + keras.layers.Dense(WIDTH)(h)
    return keras.Model(tokens, keras.layers.Dense(num_tokens)(keras.layers.LayerNormalization()(x)))


class TimeLimit(keras.callbacks.Callback):
    """Stops training after some minutes."""

    def __init__(self, minutes: float) -> None:
        super().__init__()
        self.end = time.monotonic() + 60.0 * minutes

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Checks the clock."""
        if time.monotonic() > self.end:
            self.model.stop_training = True


class Windows(keras.utils.PyDataset):
    """Batches of (tokens, next tokens) from windows of the chorales."""

    def __init__(self, windows: TrainingWindows, batch: int) -> None:
        super().__init__()
        self.windows, self.batch = windows, batch

    def __len__(self) -> int:
        return len(self.windows) // self.batch

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        rows = [self.windows[index * self.batch + i] for i in range(self.batch)]
        return tuple(np.stack([row[name] for row in rows]) for name in ("input_ids", "labels"))


def main() -> None:
    """Train, and print how surprising held-out chorales are."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--encoding", choices=ENCODINGS, default="relative")
    limit = parser.add_mutually_exclusive_group()
    limit.add_argument("--steps", type=int, help="of training")
    limit.add_argument("--minutes", type=float, default=1.0, help="of training (default: 1)")
    options = parser.parse_args()
    keras.utils.set_random_seed(0)

    music = load_chorales()
    vocabulary = Vocabulary.covering(music.pieces)
    model = make_model(vocabulary.size, options.encoding)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=IGNORED)
    model.compile(keras.optimizers.Adam(2e-3), loss=loss)
    steps = options.steps or 100_000
    windows = TrainingWindows(music.train, vocabulary, LENGTH, count=8 * steps, seed=0)
    limits = [] if options.steps else [TimeLimit(options.minutes)]
    start = time.monotonic()
    model.fit(Windows(windows, batch=8), epochs=1, callbacks=limits, verbose=0)
    taken, seconds = int(model.optimizer.iterations), time.monotonic() - start

    held_out = evaluation_windows(music.test[:8], vocabulary, LENGTH)
    nats = model.evaluate(held_out.input_ids, held_out.labels, batch_size=8, verbose=0)
    print(f"{keras.backend.backend()}, {options.encoding}: {taken} steps in {seconds:.0f} s")
    print(f"held-out chorales: {nats / math.log(2):.2f} bits a note; knowing nothing: {math.log2(vocabulary.size):.2f}")


if __name__ == "__main__":
    main()
