"""`relattn compose`: a checkpoint in, a MIDI file and a picture, or a text, out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers.utils import logging as transformers_logging

from relattn.cli.console import Bar, out, visible
from relattn.lab.compose import Sampling, compose
from relattn.lab.medium import Request


def run(checkpoint: Path | None, folder: Path, asked: dict[str, Any], drawn: dict[str, Any]) -> None:
    """Compose what is asked for, show what can be read, and say where the files lie.

    asked: the fields of `Request`. drawn: those of `Sampling`.
    """
    request, sampling = Request(**asked), Sampling(**drawn)
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    with Bar() as bar:
        written = compose(checkpoint, folder, request, sampling, bar)
    if written.text is not None:
        out.print(visible(written.text), soft_wrap=True)
        out.print()
    given = f"{written.given} of them given" if written.given else "none of them given"
    out.print(visible(f"{written.title}: {written.steps} {written.unit}, {given}"), soft_wrap=True)
    for kind, path in written.files.items():
        out.print(f"{kind:<8} {path}", soft_wrap=True)
