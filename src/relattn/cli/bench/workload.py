"""A workload: a shape, an encoding, and a mode."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

FORWARD, TRAINING, DECODING = "forward", "training", "decoding"
MODES = {FORWARD: "forward", TRAINING: "training step", DECODING: "decoding one token"}
"""The modes, and their names in tables and pictures."""
TRAINING_FLOPS = 3.5
"""Matrix products of a training step divided by those of a forward pass, with the scores recomputed: 2 and 5."""

ON_AXES = ("grid-bias", "decomposed", "layout")
"""The benchmark's own encodings, for tokens with more than one coordinate; see `case.py`."""
ENCODINGS = (
    "none", "relative", "relative-heads", "shaw-keys", "shaw", "t5", "alibi", "transformer-xl", "rope", "key-query",
    "disentangled", *ON_AXES,
)  # fmt: skip
"""Names of the catalogue, with its own options: a relative table has rows for the whole length, Shaw's clips at 16.

Then those on axes.
"""


@dataclass(frozen=True)
class Workload:
    """Self-attention: query, key and value [batch, heads, length, head_dim] under one encoding.

    mode: "forward", a forward pass without gradients. "training", a forward pass and the gradients of query, key, value
    and every parameter of the encoding. "decoding", a forward pass of the last query alone, [batch, heads, 1,
    head_dim], over all keys and values as a cache holds them; causal. dtype: a torch dtype's name. device: "cpu" or
    "cuda". window: the number of positions that a query sees on each side; None: all. lowered: the encoding's terms are
    made beforehand (projecting and gathering rows is not timed), and a training step computes the gradients of these
    terms in place of the parameters'. The floor has no window; only backends take a window or terms. An encoding on
    axes needs both directions and whole sequences, and takes neither a window nor terms.
    """

    encoding: str
    length: int
    head_dim: int
    heads: int
    causal: bool
    mode: str
    dtype: str = "float32"
    device: str = "cpu"
    batch: int = 1
    window: int | None = None
    lowered: bool = False

    @property
    def training(self) -> bool:
        """Whether gradients are computed."""
        return self.mode == TRAINING

    @property
    def decoding(self) -> bool:
        """Whether one query attends to a cache."""
        return self.mode == DECODING

    @property
    def on_axes(self) -> bool:
        """Whether the tokens have more than one coordinate."""
        return self.encoding in ON_AXES

    @property
    def grid(self) -> tuple[int, int]:
        """Height and width of a grid of `length` tokens, as square as can be: 512 is 16 x 32, a prime 1 x itself."""
        height = next(rows for rows in range(math.isqrt(self.length), 0, -1) if self.length % rows == 0)
        return height, self.length // height

    @property
    def query_length(self) -> int:
        """The number of queries."""
        return 1 if self.decoding else self.length

    @property
    def sides(self) -> tuple[int, int] | None:
        """The window as `relative_attention` takes it."""
        return None if self.window is None else (self.window, self.window)

    @property
    def reach(self) -> int:
        """The number of visible distances, 0 included."""
        return self.length if self.window is None else min(self.length, self.window + 1)

    @property
    def flops(self) -> float:
        """4 B H L^2 D multiplications and additions of attention without encoding; half when causal; 3.5x to train.

        4 B H L D for one query.
        """
        products = 4.0 * self.batch * self.heads * self.query_length * self.length * self.head_dim
        return products * (0.5 if self.causal and not self.decoding else 1.0) * (TRAINING_FLOPS if self.training else 1)

    @property
    def family(self) -> Workload:
        """The family of workloads that differ only in length: this workload at length 1."""
        return replace(self, length=1)

    @property
    def without_encoding(self) -> Workload:
        """The same without encoding and window, for the floor."""
        return replace(self, encoding="none", window=None, lowered=False)

    def at(self, length: int) -> Workload:
        """The same at another length."""
        return replace(self, length=length)

    def __str__(self) -> str:
        return f"{self.family_name}, L={self.length}"

    @property
    def short_name(self) -> str:
        """Encoding, direction and shape, in words."""
        return f"{self._encoded}{', causal' if self.causal else ''}, {self.shape}"

    @property
    def shape(self) -> str:
        """Batch, heads and width, in words."""
        return f"B={self.batch}, H={self.heads}, D={self.head_dim}"

    @property
    def family_name(self) -> str:
        """Everything but the length, in words."""
        direction = "causal" if self.causal else "both directions"
        return f"{self._encoded}, {direction}, {MODES[self.mode]}, {self.shape}, {self.dtype}"

    @property
    def _encoded(self) -> str:
        window = "" if self.window is None else f", window {self.window}"
        return f"{self.encoding}{' (lowered)' if self.lowered else ''}{window}"
