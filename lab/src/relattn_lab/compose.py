"""New data from a trained model: a held-out piece continued, the user's words continued, or a start from nothing."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from transformers import LogitsProcessor, LogitsProcessorList, StoppingCriteria, StoppingCriteriaList, set_seed

from relattn.cli.files import explain_write_errors
from relattn.cli.stopped import stop
from relattn_lab.cache import CACHE, LabCache
from relattn_lab.checkpoint import load_checkpoint
from relattn_lab.media import MEDIA
from relattn_lab.medium import Request, Written
from relattn_lab.model import LabModel
from relattn_lab.stopping import StopRequest, first_signal_waits
from relattn_lab.support.files import check_folder, check_writable
from relattn_lab.support.progress import Progress

SHIPPED = Path(__file__).parent / "shipped"
"""A model of Bach chorales, with pieces to continue; its README.md says how it was made."""

COLDEST, HOTTEST = 1e-6, 1e6
"""Temperatures that divide any float32 logit of a trained model to a float32 number."""


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn: `temperature` divides the logits, then the likeliest that together have `top_p` stay.

    Raises ValueError: for numbers out of range.
    """

    temperature: float = 0.9
    top_p: float = 0.95
    seed: int = 0

    def __post_init__(self) -> None:
        if not COLDEST <= self.temperature <= HOTTEST:
            raise ValueError(
                f"temperature: got {self.temperature:g}; expected {COLDEST:g} to {HOTTEST:g}; {COLDEST:g} takes the "
                f"likeliest token, {HOTTEST:g} any"
            )
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p: got {self.top_p:g}; expected a probability above 0, at most 1")
        if not 0 <= self.seed < 2**32:
            raise ValueError(f"seed: got {self.seed}; expected a number from 0 up to 2**32 - 1")


@dataclass(frozen=True)
class Composition:
    """A composition: `steps` of `unit` in all, the first `given` of them given, in `files` by kind.

    tokens: int64 [n], without "begin". text: what to show, where it can be read. stopped: the signal that asked for the
    end before all that was asked for was composed.
    """

    title: str
    tokens: np.ndarray
    steps: int
    given: int
    unit: str
    files: dict[str, Path]
    text: str | None
    stopped: int | None


def compose(
    checkpoint: Path | None, out: Path, request: Request, sampling: Sampling, progress: Progress
) -> Composition:
    """Compose what the request asks for with the model in `checkpoint`, and write it to `out`.

    checkpoint: None for the model that comes with the lab.

    Four-part music becomes a page that plays, a MIDI file and a picture, played music the last two, text a text file.
    What continues something held out follows the first steps of a test piece, which the seed draws among those long
    enough. At SIGINT or SIGTERM the token ends, and the whole steps composed so far are written.

    Raises KeyboardInterrupt: when no step was composed yet; FileExistsError: when `out` is a file; FileNotFoundError:
    when there is no checkpoint, or its data are gone;
    ValueError: for a broken checkpoint, data with pitches that it has no tokens for, or a prompt that is too long or of
    another kind; OSError: when `out` cannot be written, before anything is composed.
    """
    check_folder("out", out)
    check_writable(out)
    model, card = load_checkpoint(SHIPPED if checkpoint is None else checkpoint)
    medium = MEDIA[card.kind]
    opening = medium.opening(card.data, card.vocabulary, request, sampling.seed)
    count = medium.step_tokens * (request.steps or medium.steps)
    asked, given = StopRequest(), len(opening.tokens)
    with first_signal_waits(asked):
        tokens = continue_tokens(model, opening.tokens, opening.allowed, count, sampling, progress, asked)
    whole = (len(tokens) - given) // medium.step_tokens * medium.step_tokens
    if asked.signum is not None and not whole:
        stop(asked.signum)
    tokens = tokens[: given + whole]
    title = f"{opening.name}, continued" if len(opening.tokens) else "From nothing"
    title = f"{title} by {model.config.encoding} (seed {sampling.seed})"
    with explain_write_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    stem = f"{re.sub(r'[^A-Za-z0-9._-]+', '-', opening.name)}-{model.config.encoding}-seed{sampling.seed}"
    files = medium.write(str(out / stem), model, Written(title, opening, tokens, card.vocabulary))
    return Composition(
        title,
        tokens,
        len(tokens) // medium.step_tokens,
        given // medium.step_tokens,
        medium.unit,
        files,
        medium.shown(card.vocabulary, tokens),
        asked.signum if given + count > len(tokens) else None,
    )


def continue_tokens(
    model: LabModel, prompt: np.ndarray, allowed: np.ndarray, count: int, sampling: Sampling, progress: Progress,
    asked: StopRequest | None = None,
) -> np.ndarray:  # fmt: skip
    """The prompt int64 [P] and `count` tokens sampled after it, int64 [P + count]; "begin", token 0, stands before.

    Only tokens are sampled that `allowed` bool [period, tokens] grants to their place. The cache rolls over the trained
    length: every layer looks back as far as it did in training, so no relative distance comes up that was never
    trained. (The absolute positions of `sinusoid` go on growing.) Fewer than `count` where a signal has `asked` for the
    end.

    Raises ValueError: when the model's scores are not finite.
    """
    given = np.append(0, prompt)
    tokens = torch.from_numpy(given)[None].to(model.device)
    progress.begin("composing", count)
    processor = _Allowed(
        torch.from_numpy(allowed).to(model.device), lambda length: progress.advance(length - len(given))
    )
    set_seed(sampling.seed)
    generated = model.generate(  # pyright: ignore[reportAttributeAccessIssue]
        tokens,
        attention_mask=torch.ones_like(tokens),
        **{CACHE: LabCache(model.config.depth, model.config.length)},
        use_cache=True,
        do_sample=True,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=0,
        max_new_tokens=count,
        logits_processor=LogitsProcessorList([processor]),
        stopping_criteria=StoppingCriteriaList([_Stopped(asked or StopRequest())]),
    )
    return generated[0, 1:].cpu().numpy()


class _Stopped(StoppingCriteria):
    """Ends after the token at which a signal has asked for it."""

    def __init__(self, asked: StopRequest):
        self.asked = asked

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **kwargs: object) -> torch.Tensor:
        return torch.full((len(input_ids),), self.asked.signum is not None, device=input_ids.device)


class _Allowed(LogitsProcessor):
    """Takes away every token that cannot come at its place: with four voices, what the voice cannot sing."""

    def __init__(self, allowed: torch.Tensor, advance: Callable[[int], None]):
        self.allowed, self.advance = allowed, advance

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        length = input_ids.shape[1]
        self.advance(length)
        if not scores.isfinite().all():
            raise ValueError(
                f"checkpoint: got a model whose scores are not finite at token {length}; expected finite ones; "
                "train it anew"
            )
        # "begin" comes first, so the token after n others is number n - 1
        return scores.masked_fill(~self.allowed[(length - 1) % len(self.allowed)], float("-inf"))
