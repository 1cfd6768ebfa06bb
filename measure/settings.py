"""The settings of a benchmark, kept with its results: those of `relattn bench`, and the longest sequence."""

from __future__ import annotations

from dataclasses import dataclass

from relattn.checks.values import check_positive
from relattn.cli.bench import settings


@dataclass(frozen=True)
class Settings(settings.Settings):
    """The choices of a benchmark; field names are those of the options of `python -m measure`.

    As those of `relattn bench`, and max_length: None, or the GiB for the longest training step.

    Raises ValueError: for a choice that cannot be measured; it names the field.
    """

    max_length: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_length is not None:
            check_positive("max_length", self.max_length)
