"""Four-part music as a kind of data: a page that plays, a MIDI file, and a piano roll in bars."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from relattn_lab.listen import Tune, attended_by, page
from relattn_lab.medium import Medium, Opening, Request, Written, refuse_typed_prompt
from relattn_lab.model import LabModel
from relattn_lab.support.files import write_text
from relattn_lab.voices.corpus import VoicesCorpus
from relattn_lab.voices.midi import write_midi
from relattn_lab.voices.picture import draw_voices
from relattn_lab.voices.pieces import SILENCE, VOICES, Piece
from relattn_lab.voices.sources import in_four_voices, load_music
from relattn_lab.voices.vocabulary import Vocabulary, voice_ranges

LEAD = "Press play. The shaded bars were given to the model. Point at a note to see what the model looked at for it."


class FourVoices(Medium):
    """Steps are 16th notes, four tokens each."""

    kind = "voices"
    vocabulary = Vocabulary
    unit = "steps"
    prompt_steps = 32
    steps = 128
    step_tokens = len(VOICES)

    def holds(self, source: str) -> bool:
        """See `in_four_voices`."""
        return in_four_voices(source)

    def load(
        self, source: str, progress: Callable[[int, int], None] | None = None, skip_bad: bool = False
    ) -> VoicesCorpus:
        """See `load_music`."""
        return VoicesCorpus(load_music(source, progress=progress))

    def opening(self, source: str, vocabulary: Any, request: Request, seed: int) -> Opening:
        """The first steps of a test piece that the seed draws among those long enough.

        Raises ValueError: for data with pitches that the model has no tokens for, or a prompt longer than every piece.
        """
        refuse_typed_prompt(request)
        data = load_music(source)
        trained, heard = vocabulary, Vocabulary.covering(data.pieces)
        if heard.low < trained.low or heard.high > trained.high:
            raise ValueError(
                f"data: got {source}, which now holds the pitches {heard.low}..{heard.high}; expected "
                f"{trained.low}..{trained.high}, which the model was trained on; bring the former data back, or "
                "train it anew"
            )
        allowed = allowed_tokens(data.train, trained)
        if request.from_nothing:
            return Opening("from-nothing", np.array([], dtype=np.int64), allowed)
        prompt_steps = request.prompt_steps or self.prompt_steps
        piece = _draw_piece(data.test, prompt_steps, seed)
        return Opening(
            piece.name, trained.encode(piece.steps[:prompt_steps]), allowed, piece.upbeat, piece.bar_steps, piece.steps
        )

    def write(self, stem: str, model: LabModel, written: Written) -> dict[str, Path]:
        """A page that plays it beside the piece as it was written, a MIDI file and a picture."""
        steps, opening = written.vocabulary.decode(written.tokens), written.opening
        files = {
            kind: Path(f"{stem}.{suffix}") for kind, suffix in (("page", "html"), ("midi", "mid"), ("picture", "png"))
        }
        tunes = [tune(model, written, Path(stem).name), *as_written(opening, len(steps))]
        write_text(files["page"], page(written.title, LEAD, tunes))
        write_midi(files["midi"], steps, upbeat=opening.upbeat, bar_steps=opening.bar_steps)
        draw_voices(
            files["picture"],
            steps,
            prompt_steps=_given_steps(opening),
            title=written.title,
            upbeat=opening.upbeat,
            bar_steps=opening.bar_steps,
        )
        return files


def tune(model: LabModel, written: Written, file: str) -> Tune:
    """A composition of `model`, as a page plays it: with what every note looks at."""
    return Tune(
        written.title, written.vocabulary.decode(written.tokens), _given_steps(written.opening), file=file,
        upbeat=written.opening.upbeat, bar_steps=written.opening.bar_steps,
        attended=attended_by(model, written.tokens),
    )  # fmt: skip


def as_written(opening: Opening, steps: int) -> list[Tune]:
    """The piece that an opening was taken from, as it was written, up to so many steps; none where there is none."""
    if opening.original is None:
        return []
    return [
        Tune(
            f"{opening.name}, as it was written", opening.original[:steps], _given_steps(opening),
            file=opening.name, upbeat=opening.upbeat, bar_steps=opening.bar_steps,
        )
    ]  # fmt: skip


def _given_steps(opening: Opening) -> int:
    return len(opening.tokens) // len(VOICES)


def allowed_tokens(pieces: Sequence[Piece], vocabulary: Vocabulary) -> np.ndarray:
    """bool [4, vocabulary.size]: pitches within each voice's range in `pieces`; silence if the voice is ever silent."""
    allowed = np.zeros((len(VOICES), vocabulary.size), dtype=bool)
    for voice, (low, high) in enumerate(voice_ranges(pieces)):
        allowed[voice, 2 + low - vocabulary.low : 3 + high - vocabulary.low] = True
        allowed[voice, vocabulary.silence] = any((piece.steps[:, voice] == SILENCE).any() for piece in pieces)
    return allowed


def _draw_piece(pieces: Sequence[Piece], prompt_steps: int, seed: int) -> Piece:
    enough = [piece for piece in pieces if len(piece.steps) >= prompt_steps]
    if not enough:
        longest = max(len(piece.steps) for piece in pieces)
        raise ValueError(
            f"prompt_steps: got {prompt_steps}; expected at most {longest}, the steps of the longest held-out piece"
        )
    return enough[int(np.random.default_rng(seed).integers(len(enough)))]
