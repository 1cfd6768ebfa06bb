"""Played music as a kind of data: a MIDI file of one piano track, and a piano roll in seconds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from relattn_lab.medium import Medium, Opening, Request, Written, all_but_begin, refuse_typed_prompt
from relattn_lab.model import LabModel
from relattn_lab.played.corpus import load_midi_folder, read_folder
from relattn_lab.played.notes import write_notes
from relattn_lab.played.picture import draw_played
from relattn_lab.played.vocabulary import Events
from relattn_lab.sequences import Sequences


class PlayedMusic(Medium):
    """Steps are events."""

    kind = "midi"
    vocabulary = Events
    unit = "events"
    prompt_steps = 128
    steps = 512

    def holds(self, source: str) -> bool:
        """A folder does."""
        return Path(source).is_dir()

    def load(
        self, source: str, progress: Callable[[int, int], None] | None = None, skip_bad: bool = False
    ) -> Sequences:
        """See `load_midi_folder`."""
        return load_midi_folder(Path(source), progress, skip_bad)

    def opening(self, source: str, vocabulary: Any, request: Request, seed: int) -> Opening:
        """The first events of a held-out file that the seed draws among those long enough. Files that cannot be used
        are left out, as in the comparison that trained the model.

        Raises ValueError: for a prompt longer than every file.
        """
        refuse_typed_prompt(request)
        allowed = all_but_begin(vocabulary.size)
        if request.from_nothing:
            return Opening("from-nothing", np.array([], dtype=np.int64), allowed)
        prompt_steps = request.prompt_steps or self.prompt_steps
        held_out = read_folder(Path(source), skip_bad=True)[0]["test"]
        for index in np.random.default_rng(seed).permutation(len(held_out)):
            path, events = held_out[index]
            if len(events) >= prompt_steps:
                return Opening(path.stem, events[:prompt_steps].astype(np.int64) + 1, allowed)
        longest = max(len(played.events) for played in held_out)
        raise ValueError(
            f"prompt_steps: got {prompt_steps}; expected at most {longest}, the events of the longest held-out file"
        )

    def write(self, stem: str, model: LabModel, written: Written) -> dict[str, Path]:
        """A MIDI file and a picture."""
        vocabulary, tokens, opening = written.vocabulary, written.tokens, written.opening
        notes = vocabulary.notes(tokens)
        files = {"midi": Path(f"{stem}.mid"), "picture": Path(f"{stem}.png")}
        write_notes(files["midi"], notes)
        given = vocabulary.duration(opening.tokens) if len(opening.tokens) else 0
        draw_played(files["picture"], notes, duration=vocabulary.duration(tokens), given=given, title=written.title)
        return files
