"""The settings of a benchmark, checked at the start."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product

import torch

from relattn.checks.values import check_choice, check_positive, check_size
from relattn.cli.bench.workload import DECODING, ENCODINGS, MODES, ON_AXES, Workload

CAUSAL = {"no": False, "yes": True}
DTYPES = ("float64", "float32", "bfloat16", "float16")


def _device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


@dataclass(frozen=True)
class Settings:
    """The choices of a benchmark; field names are those of the options of `relattn bench`.

    The grid is the product of encodings, causal, modes, head_dims, heads, batches and lengths; decoding is causal,
    whatever `causal` names, and is measured once. Encodings on axes need both directions and whole sequences: they are
    measured once, without causality. seconds: time for the pairs of one candidate in one cell of the grid, at least 15
    pairs. patience: seconds that one step may take. A candidate that takes longer, or more memory than there is, is
    given up at that length and beyond.

    Raises ValueError: for a choice that cannot be measured; it names the field.
    """

    encodings: tuple[str, ...] = ("relative", "shaw", "t5", "alibi")
    lengths: tuple[int, ...] = (512, 1024, 2048)
    causal: tuple[str, ...] = ("no", "yes")
    modes: tuple[str, ...] = ("forward", "training")
    head_dims: tuple[int, ...] = (64,)
    heads: tuple[int, ...] = (8,)
    batches: tuple[int, ...] = (1,)
    dtype: str = "float32"
    device: str = field(default_factory=_device)
    seconds: float = 0.5
    patience: float = 5.0

    def __post_init__(self) -> None:
        for name, choices in (("encodings", ENCODINGS), ("causal", CAUSAL), ("modes", MODES)):
            for value in self._distinct(name):
                check_choice(name, value, choices)
        for name in ("lengths", "head_dims", "heads", "batches"):
            for value in self._distinct(name):
                check_size(name, value)
        check_choice("dtype", self.dtype, DTYPES)
        check_choice("device", self.device, ("cpu", "cuda"))
        if self.device == "cuda" and not torch.cuda.is_available():
            raise ValueError("device: got 'cuda'; expected 'cpu', for torch finds no GPU here")
        for encoding, part in (("transformer-xl", "sinusoids"), ("rope", "pairs of features")):
            odd = [width for width in self.head_dims if encoding in self.encodings and width % 2]
            if odd:
                raise ValueError(f"head_dims: got {odd[0]}; expected an even width, for {encoding}'s {part}")
        for encoding in ON_AXES:
            if encoding in self.encodings and "no" not in self.causal:
                raise ValueError(f"causal: got {self.causal!r}; expected 'no' among them, for {encoding} has no past")
            if encoding in self.encodings and DECODING in self.modes:
                raise ValueError(f"modes: got {DECODING!r}; expected others, for {encoding} has no past to decode from")
        for name in ("seconds", "patience"):
            check_positive(name, getattr(self, name))

    def _distinct(self, name: str) -> tuple[object, ...]:
        values = getattr(self, name)
        if not values or len(set(values)) < len(values):
            raise ValueError(f"{name}: got {values!r}; expected at least one, each once")
        return values

    def families(self, modes: tuple[str, ...]) -> Iterator[Workload]:
        """The workloads of the grid at length 1, in the order of the tables."""
        grid = product(self.encodings, self.head_dims, self.heads, self.batches, self.causal, modes)
        yield from dict.fromkeys(
            Workload(encoding, 1, width, heads, mode == DECODING or CAUSAL[past], mode, self.dtype, self.device, batch)
            for encoding, width, heads, batch, past, mode in grid
            if not (CAUSAL[past] and encoding in ON_AXES)
        )

    def workloads(self) -> Iterator[Workload]:
        """Every cell of the grid; the lengths of a family ascend."""
        for family in self.families(self.modes):
            for length in sorted(self.lengths):
                yield family.at(length)
