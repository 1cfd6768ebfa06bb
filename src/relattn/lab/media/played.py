"""Played music: a MIDI file of one piano track, and a piano roll in seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from relattn.lab.checkpoint import DataCard
from relattn.lab.media.base import Medium, Opening, Request, all_but_begin, refuse_typed_prompt
from relattn.lab.music.folder import split_files
from relattn.lab.music.performance import read_notes, write_notes
from relattn.lab.music.performance_roll import draw_performance


class PlayedMusic(Medium):
    """Steps are events."""

    unit = "events"
    prompt_steps = 128
    steps = 512

    def opening(self, card: DataCard, request: Request, seed: int) -> Opening:
        """The first events of a held-out file that the seed draws among those long enough.

        Raises ValueError: for a prompt longer than every file.
        """
        refuse_typed_prompt(request)
        allowed = all_but_begin(card.vocabulary.size)
        if request.from_nothing:
            return Opening("from-nothing", np.array([], dtype=np.int64), allowed)
        prompt_steps = request.prompt_steps or self.prompt_steps
        paths, longest = split_files(Path(card.data))["test"], 0
        for index in np.random.default_rng(seed).permutation(len(paths)):
            events = card.vocabulary.events(read_notes(paths[index]))
            if len(events) >= prompt_steps:
                return Opening(paths[index].stem, events[:prompt_steps].astype(np.int64) + 1, allowed)
            longest = max(longest, len(events))
        raise ValueError(
            f"prompt_steps: got {prompt_steps}; expected at most {longest}, the events of the longest held-out file"
        )

    def write(self, stem: str, vocabulary: Any, tokens: np.ndarray, opening: Opening, title: str) -> dict[str, Path]:
        """A MIDI file and a picture."""
        notes = vocabulary.notes(tokens)
        files = {"midi": Path(f"{stem}.mid"), "picture": Path(f"{stem}.png")}
        write_notes(files["midi"], notes)
        given = vocabulary.duration(opening.tokens) if len(opening.tokens) else 0
        draw_performance(files["picture"], notes, duration=vocabulary.duration(tokens), given=given, title=title)
        return files
