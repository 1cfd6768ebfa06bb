"""Text as a kind of data: a file of the bytes that were given and composed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from relattn.cli.files import atomic_path
from relattn_lab.medium import Medium, Opening, Request, Written, all_but_begin
from relattn_lab.model import LabModel
from relattn_lab.played.corpus import SUFFIXES
from relattn_lab.sequences import Sequences
from relattn_lab.text.corpus import load_text
from relattn_lab.text.vocabulary import Bytes

NEWLINE = ord("\n")


class Text(Medium):
    """Steps are bytes."""

    kind = "text"
    vocabulary = Bytes
    unit = "bytes"
    prompt_steps = 64
    steps = 512

    def holds(self, source: str) -> bool:
        """A file does, unless it is played music."""
        return Path(source).is_file() and Path(source).suffix.lower() not in SUFFIXES

    def load(
        self, source: str, progress: Callable[[int, int], None] | None = None, skip_bad: bool = False
    ) -> Sequences:
        """See `load_text`."""
        return load_text(Path(source))

    def opening(self, source: str, vocabulary: Any, request: Request, seed: int) -> Opening:
        """The user's words, in UTF-8; or held-out text from the start of a line that the seed draws.

        Raises ValueError: for a prompt longer than the held-out text.
        """
        allowed = all_but_begin(vocabulary.size)
        if request.from_nothing:
            return Opening("from-nothing", np.array([], dtype=np.int64), allowed)
        if request.prompt is not None:
            return Opening("prompt", vocabulary.encode(request.prompt), allowed)
        prompt_steps = request.prompt_steps or self.prompt_steps
        corpus = load_text(Path(source))
        (held_out,) = corpus.pieces("test")
        lines = np.append(0, np.flatnonzero(held_out == NEWLINE) + 1)
        starts = lines[lines + prompt_steps <= len(held_out)]
        if not len(starts):
            raise ValueError(
                f"prompt_steps: got {prompt_steps}; expected at most {len(held_out)}, the bytes of the held-out text"
            )
        start = int(np.random.default_rng(seed).choice(starts))
        given = held_out[start : start + prompt_steps].astype(np.int64) + 1
        return Opening(f"{corpus.name}-{start}", given, allowed)

    def write(self, stem: str, model: LabModel, written: Written) -> dict[str, Path]:
        """A text file, byte for byte what was given and composed."""
        path = Path(f"{stem}.txt")
        with atomic_path(path) as temporary:
            temporary.write_bytes(written.vocabulary.decode(written.tokens))
        return {"text": path}

    def shown(self, vocabulary: Any, tokens: np.ndarray) -> str:
        """The text; bytes that are no UTF-8 become the replacement character."""
        return vocabulary.decode(tokens).decode(errors="replace")
