"""Bytes as tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Bytes:
    """token(begin) = 0, token(byte b) = b + 1."""

    begin = 0
    symbols = 256
    size = 257

    def encode(self, text: str) -> np.ndarray:
        """The tokens of `text` in UTF-8, without "begin"."""
        return np.frombuffer(text.encode(), np.uint8).astype(np.int64) + 1

    def decode(self, tokens: np.ndarray) -> bytes:
        """The bytes of `tokens` after "begin"."""
        return (tokens[tokens != self.begin] - 1).astype(np.uint8).tobytes()
