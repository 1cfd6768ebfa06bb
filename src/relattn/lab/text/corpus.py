"""A text file, byte by byte."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from relattn.lab.corpus import Words
from relattn.lab.sequences import Sequences
from relattn.lab.text.vocabulary import Bytes

LEAST_BYTES = 100
WORDS = Words(
    tokens="bytes as they are, the first 80 percent to train on, then 10 to choose by, the last 10 held out",
    ngram="The n-gram looks at up to five bytes back, across the beginning of a window too.",
    typical="Divided by ln 2 = 0.693 a loss is in bits per byte, as results on text are often given.",
)


def load_text(path: Path) -> Sequences:
    """The bytes of the file `path` in three contiguous parts: 80 percent to train on, 10 to choose by, 10 held out.

    Raises FileNotFoundError: when there is no such file; ValueError: for one too short to be split.
    """
    if not path.is_file():
        raise FileNotFoundError(f"data: got {str(path)!r}, which is not there; expected a text file")
    content = np.frombuffer(path.read_bytes(), np.uint8)
    if len(content) < LEAST_BYTES:
        raise ValueError(
            f"data: got {path}, a text of {len(content)} bytes; expected at least {LEAST_BYTES} bytes, to train "
            "on and to hold out"
        )
    train, valid, test = np.split(content, [8 * len(content) // 10, 9 * len(content) // 10])
    parts = {"train": [train], "valid": [valid], "test": [test]}
    return Sequences("text", path.name, WORDS, Bytes(), parts.__getitem__)
