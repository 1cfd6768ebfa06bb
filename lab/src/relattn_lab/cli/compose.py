"""`relattn-lab compose`: a checkpoint in, a MIDI file and a picture, or a text, out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer
from transformers.utils import logging as transformers_logging

from relattn.cli.console import Bar, err, out, say_stopped, visible
from relattn_lab.compose import Sampling, compose
from relattn_lab.medium import Request


def run(checkpoint: Path | None, folder: Path, asked: dict[str, Any], drawn: dict[str, Any]) -> None:
    """Compose what is asked for, show what can be read, and say where the files lie.

    On Ctrl-C and SIGTERM what was composed is kept, and the exit code is 130 or 143.

    asked: the fields of `Request`. drawn: those of `Sampling`.
    """
    request, sampling = Request(**asked), Sampling(**drawn)
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        with Bar() as bar:
            written = compose(checkpoint, folder, request, sampling, bar)
    except KeyboardInterrupt as stopped:
        say_stopped(stopped, "stopped; nothing was kept")
    if written.text is not None:
        out.print(visible(written.text), soft_wrap=True)
        out.print()
    given = f"{written.given} of them given" if written.given else "none of them given"
    out.print(visible(f"{written.title}: {written.steps} {written.unit}, {given}"), soft_wrap=True)
    for kind, path in written.files.items():
        out.print(f"{kind:<8} {path}", soft_wrap=True)
    if written.stopped is not None:
        err.print("stopped; what was composed until then is kept", soft_wrap=True)
        raise typer.Exit(128 + written.stopped)
