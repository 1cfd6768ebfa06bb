"""Models and data small enough to train in a test."""

import json
from pathlib import Path

import torch

from relattn_lab.config import LabConfig
from relattn_lab.model import LabModel
from relattn_lab.settings import Settings
from relattn_lab.support.progress import Silent
from tests import seeds
from tests.lab.voices.synthetic import random_steps

SMALL = {"length": 16, "width": 16, "depth": 1, "heads": 2}


def config(encoding: str = "relative", **changes) -> LabConfig:
    return LabConfig(**{"vocab_size": 20, "depth": 2, "dropout": 0.0, **SMALL, "encoding": encoding, **changes})


def model(encoding: str = "relative", seed: int = 0, **changes) -> LabModel:
    seeds.start_torch(seed)
    return LabModel(config(encoding, **changes)).eval()


def tokens(batch: int, length: int, seed: int = 1) -> torch.Tensor:
    return torch.randint(1, 20, (batch, length), generator=seeds.torch_generator(seed))


def write_data(path: Path, seed: int = 0, lengths: tuple[int, ...] = (20, 33, 24, 40)) -> Path:
    """A data set in the JSON format: `lengths` steps in the pieces of train, and again in valid (two) and test."""
    random = seeds.generator(seed)
    pieces = [random_steps(random, length).tolist() for length in (*lengths, *lengths)]
    half, quarter = len(lengths), len(lengths) + 2
    path.write_text(json.dumps({"train": pieces[:half], "valid": pieces[half:quarter], "test": pieces[quarter:]}))
    return path


def settings(data: Path, **changes) -> Settings:
    return Settings(
        **{"data": str(data), "encodings": ("relative", "none"), "minutes": None, "steps": 6, **SMALL, **changes}
    )


class Recorder(Silent):
    """A listener that remembers, and calls `act(label, done)` on every advance."""

    def __init__(self, act=lambda label, done: None):
        self.said, self.begun, self.act = [], [], act

    def say(self, text):
        self.said.append(text)

    def begin(self, label, total):
        self.begun.append((label, total))

    def advance(self, done, note=""):
        self.act(self.begun[-1][0], done)
