"""New music from a trained model: the opening of a held-out piece continued, or a start from nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from transformers import LogitsProcessor, LogitsProcessorList, set_seed

from relattn.lab.cache import LabCache
from relattn.lab.checkpoint import load_checkpoint
from relattn.lab.model import LabModel
from relattn.lab.music.data import SILENCE, VOICES, Piece
from relattn.lab.music.midi import write_midi
from relattn.lab.music.pianoroll import draw_pianoroll
from relattn.lab.music.sources import load_music
from relattn.lab.music.tokens import Vocabulary, voice_ranges
from relattn.lab.progress import Progress


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn: `temperature` divides the logits, then the likeliest that together have `top_p` stay.

    Raises ValueError for numbers out of range.
    """

    temperature: float = 0.9
    top_p: float = 0.95
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.temperature < float("inf"):
            raise ValueError(f"temperature: got {self.temperature:g}, expected a positive number")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p: got {self.top_p:g}, expected a probability above 0, at most 1")
        if not 0 <= self.seed < 2**32:
            raise ValueError(f"seed: got {self.seed}, expected a number from 0 up to 2**32 - 1")


@dataclass(frozen=True)
class Composition:
    """Files of a composition and what stands in them: `steps` int16 [T, 4], the first `prompt_steps` of them given."""

    steps: np.ndarray
    prompt_steps: int
    title: str
    midi: Path
    picture: Path


def compose(
    checkpoint: Path, out: Path, prompt_steps: int | None, steps: int, sampling: Sampling, progress: Progress
) -> Composition:
    """Compose `steps` 16th notes with the model in `checkpoint` and write them to `out` as MIDI and as a picture.

    With `prompt_steps` they follow that many steps of a test piece, which the seed draws among those long enough; with
    None the piece begins from nothing.

    Raises:
        FileNotFoundError: when there is no checkpoint, or its data are gone.
        ValueError: for a broken checkpoint, data with pitches that it has no tokens for, a number out of range, or a
            prompt longer than every piece.
    """
    if steps < 1:
        raise ValueError(f"steps: got {steps}, expected at least 1")
    if out.exists() and not out.is_dir():
        raise FileExistsError(f"out: {out} is a file; choose another --out")
    model, card = load_checkpoint(checkpoint)
    data = load_music(card.data)
    heard = Vocabulary.covering(data.pieces)
    if heard.low < card.low or heard.high > card.high:
        raise ValueError(
            f"data: {card.data} now holds the pitches {heard.low}..{heard.high}, but the model in {checkpoint} was "
            f"trained on {card.low}..{card.high}; bring the former data back, or train it anew"
        )
    prompt, name = None, "from-nothing"
    upbeat, bar_steps = 0, 16
    if prompt_steps is not None:
        piece = _draw_piece(data.test, prompt_steps, sampling.seed)
        prompt, name, upbeat, bar_steps = piece.steps[:prompt_steps], piece.name, piece.upbeat, piece.bar_steps
    allowed = allowed_tokens(data.train, card.vocabulary)
    composed = continue_music(model, card.vocabulary, allowed, prompt, steps, sampling, progress)
    title = f"{name}, continued" if prompt is not None else "From nothing"
    title = f"{title} by a model with the encoding {model.config.encoding} (seed {sampling.seed})"
    out.mkdir(parents=True, exist_ok=True)
    stem = out / f"{re.sub(r'[^A-Za-z0-9._-]+', '-', name)}-{model.config.encoding}-seed{sampling.seed}"
    written = Composition(composed, prompt_steps or 0, title, Path(f"{stem}.mid"), Path(f"{stem}.png"))
    write_midi(written.midi, composed)
    draw_pianoroll(
        written.picture, composed, prompt_steps=written.prompt_steps, title=title, upbeat=upbeat, bar_steps=bar_steps
    )
    return written


def allowed_tokens(pieces: Sequence[Piece], vocabulary: Vocabulary) -> np.ndarray:
    """bool [4, vocabulary.size]: pitches within each voice's range in `pieces`; silence if the voice is ever silent."""
    allowed = np.zeros((len(VOICES), vocabulary.size), dtype=bool)
    for voice, (low, high) in enumerate(voice_ranges(pieces)):
        allowed[voice, 2 + low - vocabulary.low : 3 + high - vocabulary.low] = True
        allowed[voice, vocabulary.silence] = any((piece.steps[:, voice] == SILENCE).any() for piece in pieces)
    return allowed


def continue_music(
    model: LabModel,
    vocabulary: Vocabulary,
    allowed: np.ndarray,
    prompt: np.ndarray | None,
    steps: int,
    sampling: Sampling,
    progress: Progress,
) -> np.ndarray:
    """The prompt [P, 4] and `steps` sampled steps after it, int16 [P + steps, 4].

    Only tokens that `allowed` bool [4, tokens] grants to the voice whose turn it is are sampled. The cache rolls over
    the trained length: every layer looks back as far as it did in training, so no relative distance comes up that was
    never trained. (The absolute positions of `sinusoid` go on growing.)
    """
    given = np.array([vocabulary.begin]) if prompt is None else np.append(vocabulary.begin, vocabulary.encode(prompt))
    tokens = torch.from_numpy(given)[None].to(model.device)
    count = len(VOICES) * steps
    progress.begin("composing", count)
    processor = _Allowed(
        torch.from_numpy(allowed).to(model.device), lambda length: progress.advance(length - len(given))
    )
    set_seed(sampling.seed)
    generated = model.generate(  # pyright: ignore[reportAttributeAccessIssue]
        tokens,
        attention_mask=torch.ones_like(tokens),
        past_key_values=LabCache(model.config.depth, model.config.length),
        do_sample=True,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=0,
        max_new_tokens=count,
        logits_processor=LogitsProcessorList([processor]),
    )
    return vocabulary.decode(generated[0].cpu().numpy())


class _Allowed(LogitsProcessor):
    """Takes away every token that the voice whose turn it is cannot sing."""

    def __init__(self, allowed: torch.Tensor, advance: Callable[[int], None]):
        self.allowed, self.advance = allowed, advance

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        length = input_ids.shape[1]
        self.advance(length)
        # "begin" comes first, so the token after n others belongs to voice (n - 1) % 4
        return scores.masked_fill(~self.allowed[(length - 1) % len(VOICES)], float("-inf"))


def _draw_piece(pieces: Sequence[Piece], prompt_steps: int, seed: int) -> Piece:
    if prompt_steps < 1:
        raise ValueError(
            f"prompt_steps: got {prompt_steps}, expected at least 1; to start without a prompt use --from-nothing"
        )
    enough = [piece for piece in pieces if len(piece.steps) >= prompt_steps]
    if not enough:
        longest = max(len(piece.steps) for piece in pieces)
        raise ValueError(f"prompt_steps: got {prompt_steps}, but the longest held-out piece has {longest} steps")
    return enough[int(np.random.default_rng(seed).integers(len(enough)))]
