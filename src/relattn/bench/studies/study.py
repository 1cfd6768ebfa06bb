"""A study: measurements that belong on one page, each under a name, kept in one file."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from relattn.bench.results import PACKAGES
from relattn.bench.studies.catalogue import CATALOGUE, study_of
from relattn.bench.timing import UNSTEADY, Spread
from relattn.support.files import check_folder, said, write_json, write_text
from relattn.support.machine import machine, versions
from relattn.support.progress import Progress

FORMAT = 1
Figures = dict[str, Any]
"""What one measurement finds, as JSON has it."""


@dataclass(frozen=True)
class Study:
    """What is measured, and how it is shown.

    setting: what all figures share, in sentences. measurements: by name, functions that measure. table: Markdown from
    the figures by the same names. threads: of PyTorch. draw: writes pictures into a folder.
    """

    setting: str
    measurements: Mapping[str, Callable[[], Figures]]
    table: Callable[[Mapping[str, Figures]], str]
    threads: int = 2
    draw: Callable[[Mapping[str, Figures], Path], None] | None = None


@dataclass
class Kept:
    """The file of a study: where and when it was measured, and its figures."""

    name: str
    date: str = field(default_factory=lambda: datetime.datetime.now().astimezone().isoformat(timespec="seconds"))
    machine: dict[str, Any] = field(default_factory=machine)
    versions: dict[str, str | None] = field(default_factory=lambda: versions(*PACKAGES))
    figures: dict[str, Figures] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Kept:
        """What a file holds."""
        held = json.loads(path.read_text(encoding="utf-8"))
        return cls(held["study"], held["date"], held["machine"], held["versions"], held["figures"])

    def write(self, folder: Path) -> None:
        """Into NAME.json, completely or not at all."""
        write_json(folder / f"{self.name}.json", {
            "format": FORMAT, "study": self.name, "date": self.date, "machine": self.machine,
            "versions": self.versions, "figures": self.figures,
        })  # fmt: skip

    def page(self, study: Study) -> str:
        """The study as a page of Markdown."""
        threads = self.machine["torch_threads"]
        packages = ", ".join(f"{package} {version}" for package, version in self.versions.items() if version)
        return "\n\n".join([
            f"# {CATALOGUE[self.name].answers}",
            study.setting,
            f"```sh\nrelattn bench {self.name}\n```",
            f"{self.date[:10]}, {self.machine['processor']} with {self.machine['cores']} cores, threads: {threads}; "
            f"{packages}.",
            study.table({key: self.figures[key] for key in study.measurements}).rstrip(),
        ]) + "\n"  # fmt: skip


def carry_out(name: str, folder: Path, progress: Progress) -> str:
    """Measure what NAME.json in the folder does not hold yet; write it and NAME.md; the page.

    Raises ValueError: for a name that is not in the catalogue, and where the file was begun on another machine or with
    other versions; FileExistsError: when the folder is a file.
    """
    study = study_of(name)
    torch.set_num_threads(study.threads)
    check_folder("out", folder)
    with said(folder):
        folder.mkdir(parents=True, exist_ok=True)
    kept = _begun(name, folder)
    missing = [key for key in study.measurements if key not in kept.figures]
    progress.begin(name, len(missing))
    for done, key in enumerate(missing, 1):
        kept.figures[key] = study.measurements[key]()
        kept.write(folder)
        progress.advance(done, key)
    page = kept.page(study)
    write_text(folder / f"{name}.md", page)
    if study.draw is not None:
        study.draw(kept.figures, folder)
    return page


def _begun(name: str, folder: Path) -> Kept:
    """What an interrupted run has left, or nothing yet."""
    path, new = folder / f"{name}.json", Kept(name)
    if not path.exists():
        return new
    kept = Kept.read(path)
    for what in ("machine", "versions"):
        there, here = getattr(kept, what), getattr(new, what)
        if there != here:
            other = next(key for key in here if there.get(key) != here[key])
            raise ValueError(
                f"out: got {path}, which was begun with {other} {there.get(other)}; expected {here[other]}, as here; "
                "give another folder, or remove the file to measure all of it again"
            )
    return kept


def figures_of(spread: Spread, share: float = 1.0) -> list[float]:
    """[median, lower quartile, upper quartile], each divided by `share`."""
    return [float(f"{value / share:.4g}") for value in (spread.median, spread.lower, spread.upper)]


def shown(figures: Sequence[float]) -> str:
    """The median; with half the distance of the quartiles where they lie more than 10 % apart."""
    median, lower, upper = figures
    return f"{median:.2f}" + (f" ±{(upper - lower) / 2:.2f}" if upper - lower > UNSTEADY * median else "")


def quartiles(figures: Sequence[float]) -> str:
    """The median with its quartiles."""
    median, lower, upper = figures
    return f"{median:.2f} [{lower:.2f} {upper:.2f}]"


def table(columns: Mapping[str, str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; columns: titles, each with its alignment, "---" or "---:"."""
    lines = [columns, columns.values(), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + "\n"
