"""A kind of data: how it is loaded, what its tokens are, how a piece begins, and how a composition is written."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from relattn_lab.corpus import Corpus
from relattn_lab.model import LabModel

MOST_STEPS = 2**31 - 1


@dataclass(frozen=True)
class Request:
    """What to compose: `steps` after the first `prompt_steps` of something held out, after `prompt`, or from nothing.

    None leaves the number to the medium.

    Raises ValueError: for a number out of range, or for more than one beginning.
    """

    prompt_steps: int | None = None
    prompt: str | None = None
    from_nothing: bool = False
    steps: int | None = None

    def __post_init__(self) -> None:
        if self.steps is not None and not 1 <= self.steps <= MOST_STEPS:
            raise ValueError(f"steps: got {self.steps}; expected 1 to 2**31 - 1")
        if self.prompt is not None and (self.prompt_steps is not None or self.from_nothing):
            raise ValueError(
                "prompt: got one beside --prompt-steps or --from-nothing; expected one of them; leave the others out"
            )
        if self.prompt == "":
            raise ValueError("prompt: got no text; expected some; to start without a prompt use --from-nothing")
        if self.prompt_steps is not None and self.prompt_steps < 1:
            raise ValueError(
                f"prompt_steps: got {self.prompt_steps}; expected at least 1; to start without a prompt use "
                "--from-nothing"
            )


@dataclass(frozen=True, eq=False)
class Opening:
    """What a composition starts from: `tokens` int64 [n] that are given, and `allowed` bool [period, tokens].

    allowed[p % period] says which tokens may come p places after "begin". `name` is for titles and files. Of four-part
    music `upbeat` and `bar_steps` are the metre, and `original` [T, 4] the piece that the opening was taken from.
    """

    name: str
    tokens: np.ndarray
    allowed: np.ndarray
    upbeat: int = 0
    bar_steps: int = 16
    original: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class Written:
    """A composition: `tokens` int64 [n], those of the opening and those composed, and what they stand for."""

    title: str
    opening: Opening
    tokens: np.ndarray
    vocabulary: Any


class Medium(ABC):
    """A kind of data.

    kind: its name in checkpoints. vocabulary: the class of what its tokens stand for. unit: names what `steps` counts,
    `step_tokens` tokens each. prompt_steps, steps: the defaults of `Request`.
    """

    kind: str
    vocabulary: type
    unit: str
    prompt_steps: int
    steps: int
    step_tokens: int = 1

    @abstractmethod
    def holds(self, source: str) -> bool:
        """Whether `source` names data of this kind."""

    @abstractmethod
    def load(self, source: str, progress: Callable[[int, int], None] | None = None, skip_bad: bool = False) -> Corpus:
        """The data that `source` names. `progress(done, total)` is called after each file that is read.

        skip_bad: of a folder, go on without the files that cannot be used.
        """

    @abstractmethod
    def opening(self, source: str, vocabulary: Any, request: Request, seed: int) -> Opening:
        """What the request starts from. What the seed draws, it draws from the held-out part of the data `source`.

        vocabulary: what the model's tokens stand for.
        """

    @abstractmethod
    def write(self, stem: str, model: LabModel, written: Written) -> dict[str, Path]:
        """Write what `model` has composed to files that begin with `stem`; their names by kind."""

    def shown(self, vocabulary: Any, tokens: np.ndarray) -> str | None:
        """The composition as text, where it is one."""
        return None


def refuse_typed_prompt(request: Request) -> None:
    """The request has no prompt of words.

    Raises ValueError: when it has one.
    """
    if request.prompt is not None:
        raise ValueError(
            "prompt: got words; expected none, for only a model of text goes on from words; leave them out, or "
            "use --prompt-steps"
        )


def all_but_begin(size: int) -> np.ndarray:
    """`Opening.allowed` where everything may come at any time."""
    allowed = np.ones((1, size), dtype=bool)
    allowed[0, 0] = False
    return allowed
