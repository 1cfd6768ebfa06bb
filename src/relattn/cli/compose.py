"""`relattn compose`: a checkpoint in, a MIDI file and a picture out."""

from __future__ import annotations

from pathlib import Path

from transformers.utils import logging as transformers_logging

from relattn.cli.console import Bar, out
from relattn.lab.compose import Sampling, compose


def run(
    checkpoint: Path, folder: Path, prompt_steps: int | None, steps: int, temperature: float, top_p: float, seed: int
) -> None:
    """Compose and say where the files lie; prompt_steps None starts from nothing."""
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    with Bar() as bar:
        written = compose(checkpoint, folder, prompt_steps, steps, Sampling(temperature, top_p, seed), bar)
    given = f"{written.prompt_steps} of them given" if written.prompt_steps else "none of them given"
    out.print(f"{written.title}: {len(written.steps)} steps, {given}", soft_wrap=True)
    out.print(f"midi     {written.midi}\npicture  {written.picture}", soft_wrap=True)
