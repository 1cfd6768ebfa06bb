"""A text file, byte by byte."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from relattn_lab.corpus import Words
from relattn_lab.sequences import Sequences
from relattn_lab.text.vocabulary import Bytes

LEAST_BYTES = 100
SIGNATURES = {
    b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16", b"PK\x03\x04": "a ZIP archive, as .npz and .docx are",
    b"\x1f\x8b": "a gzip archive", b"BZh91AY": "a bzip2 archive", b"\xfd7zXZ": "an xz archive",
    b"7z\xbc\xaf": "a 7z archive", b"(\xb5/\xfd": "a zstd archive", b"%PDF-": "a PDF",
    b"\x89PNG": "a PNG image", b"\xff\xd8\xff": "a JPEG image",
    b"GIF89a": "a GIF image", b"MThd": "a MIDI file",
}  # fmt: skip
"""How files that are no text begin."""
OF_TEXT = np.isin(np.arange(256), [*b"\b\t\n\v\f\r\x1a\x1b"]) | (np.arange(256) >= 32) & (np.arange(256) != 127)
"""The bytes that texts are made of in any encoding of bytes; control characters of typewriters and terminals too."""
MOST_CONTROL = 0.01
"""The share of other control characters in a text. Compressed data have nine in a hundred."""
WORDS = Words(
    tokens="bytes as they are, the first 80 percent to train on, then 10 to choose by, the last 10 held out",
    ngram="The n-gram looks at up to five bytes back, across the beginning of a window too.",
    typical="Divided by ln 2 = 0.693 a loss is in bits per byte, as results on text are often given.",
)


def load_text(path: Path) -> Sequences:
    """The bytes of the file `path` in three contiguous parts: 80 percent to train on, 10 to choose by, 10 held out.

    Raises FileNotFoundError: when there is no such file; ValueError: for binary data, and for a text too short to be
    split.
    """
    if not path.is_file():
        raise FileNotFoundError(f"data: got {str(path)!r}, which is not there; expected a text file")
    content = np.frombuffer(path.read_bytes(), np.uint8)
    _check_text(path, content)
    if len(content) < LEAST_BYTES:
        raise ValueError(
            f"data: got {path}, a text of {len(content)} bytes; expected at least {LEAST_BYTES} bytes, to train "
            "on and to hold out"
        )
    train, valid, test = np.split(content, [8 * len(content) // 10, 9 * len(content) // 10])
    parts = {"train": [train], "valid": [valid], "test": [test]}
    return Sequences("text", path.name, WORDS, Bytes(), parts.__getitem__)


def _check_text(path: Path, content: np.ndarray) -> None:
    """Bytes that may be a text, in UTF-8 or another encoding of bytes."""
    why = _no_text(content)
    if why:
        raise ValueError(
            f"data: got {path}, which {why}; expected a text; unpack an archive, and save a text as UTF-8, as "
            "`iconv -f UTF-16 -t UTF-8` does"
        )


def _no_text(content: np.ndarray) -> str:
    """Why the bytes are no text; nothing where they may be one."""
    begins = content[:8].tobytes()
    for signature, kind in SIGNATURES.items():
        if begins.startswith(signature):
            return f"is {kind}"
    zeros = np.flatnonzero(content == 0)
    if len(zeros):
        return f"holds the byte 0, first at {zeros[0]}, as binary data and UTF-16 do"
    control = np.count_nonzero(~OF_TEXT[content]) / max(len(content), LEAST_BYTES)
    return f"has control characters in {control:.0%} of its bytes, as binary data do" if control > MOST_CONTROL else ""
