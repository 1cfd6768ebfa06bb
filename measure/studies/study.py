"""A study: measurements that belong on one page, each under a name, kept in one file."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from measure.markdown import doubt
from measure.resume import HOW_ELSE, check_measured_here
from measure.studies.catalogue import CATALOGUE, study_of
from relattn.cli.bench.timing import Spread
from relattn.cli.files import explain_write_errors
from relattn.cli.machine import machine, versions
from relattn_lab.support.files import check_folder, write_json, write_text
from relattn_lab.support.progress import Progress

FORMAT = 1
Figures = dict[str, Any]
"""What one measurement finds, as JSON has it."""


@dataclass(frozen=True)
class Study:
    """What is measured, and how it is shown.

    setting: what all figures share, in sentences. measurements: by name, functions that measure. table: Markdown from
    the figures by the same names. threads: of PyTorch. packages: those whose versions are kept with the figures. draw:
    writes pictures into a folder.
    """

    setting: str
    measurements: Mapping[str, Callable[[], Figures]]
    table: Callable[[Mapping[str, Figures]], str]
    threads: int = 2
    packages: tuple[str, ...] = ("torch",)
    draw: Callable[[Mapping[str, Figures], Path], None] | None = None


@dataclass
class Kept:
    """The file of a study: where and when it was measured, and its figures."""

    name: str
    date: str
    machine: dict[str, Any]
    versions: dict[str, str | None]
    figures: dict[str, Figures]

    @classmethod
    def new(cls, name: str, study: Study) -> Kept:
        """Begun here and now."""
        date = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
        return cls(name, date, machine(), versions(*study.packages), {})

    @classmethod
    def read(cls, path: Path, name: str) -> Kept:
        """What a file of the study `name` holds.

        Raises ValueError: for a file that is damaged, or is another's.
        """
        try:
            held = json.loads(path.read_text(encoding="utf-8"))
            if (held["format"], held["study"]) != (FORMAT, name):
                raise ValueError
            return cls(name, held["date"], held["machine"], held["versions"], held["figures"])
        except (ValueError, KeyError, TypeError):
            raise ValueError(
                f"out: got {path}, which holds no figures of the study {name!r}; expected these, or no such file; "
                f"{HOW_ELSE}"
            ) from None

    def write(self, folder: Path) -> None:
        """Into NAME.json, completely or not at all."""
        write_json(folder / f"{self.name}.json", {
            "format": FORMAT, "study": self.name, "date": self.date, "machine": self.machine,
            "versions": self.versions, "figures": self.figures,
        })  # fmt: skip

    def page(self, study: Study) -> str:
        """The study as a page of Markdown."""
        threads, figures = self.machine["torch_threads"], self.ordered(study)
        processor = ", ".join(filter(None, map(self.machine.get, ("processor", "instructions"))))
        packages = ", ".join(f"{package} {version}" for package, version in self.versions.items() if version)
        return "\n\n".join([
            f"# {CATALOGUE[self.name].answers}",
            study.setting,
            f"```sh\npython -m measure {self.name}\n```",
            f"{self.date[:10]}, {processor} with {self.machine['cores']} cores, threads: {threads}; {packages}.",
            study.table(figures).rstrip(),
        ]) + "\n"  # fmt: skip

    def ordered(self, study: Study) -> dict[str, Figures]:
        """The figures in the study's order."""
        return {key: self.figures[key] for key in study.measurements}


def carry_out(name: str, folder: Path, progress: Progress) -> str:
    """Measure what NAME.json in the folder does not hold yet; write it and NAME.md; the page.

    Raises ValueError: for a name that is not in the catalogue, for a damaged or foreign file, and for one that
    was begun on another machine or with other versions; FileExistsError: when the folder is a file.
    """
    check_folder("out", folder)
    study = study_of(name)
    torch.set_num_threads(study.threads)
    with explain_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    kept = _begun(name, study, folder)
    missing = [key for key in study.measurements if key not in kept.figures]
    progress.begin(name, len(missing))
    for done, key in enumerate(missing, 1):
        kept.figures[key] = study.measurements[key]()
        kept.write(folder)
        progress.advance(done, key)
    page = kept.page(study)
    write_text(folder / f"{name}.md", page)
    if study.draw is not None:
        study.draw(kept.ordered(study), folder)
    return page


def _begun(name: str, study: Study, folder: Path) -> Kept:
    """What an interrupted run has left, or nothing yet."""
    path = folder / f"{name}.json"
    if not path.exists():
        return Kept.new(name, study)
    kept = Kept.read(path, name)
    check_measured_here(path, kept.machine, kept.versions, *study.packages)
    return kept


def figures_of(spread: Spread, share: float = 1.0) -> list[float]:
    """[median, lower quartile, upper quartile], each divided by `share`."""
    return [float(f"{value / share:.4g}") for value in (spread.median, spread.lower, spread.upper)]


def shown(figures: Sequence[float]) -> str:
    """The median; with half the distance of the quartiles where they lie more than 10 % apart."""
    spread = Spread(*figures)
    return f"{spread.median:.2f}{doubt(spread)}"


def quartiles(figures: Sequence[float]) -> str:
    """The median with its quartiles."""
    median, lower, upper = figures
    return f"{median:.2f} [{lower:.2f} {upper:.2f}]"


def table(columns: Mapping[str, str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; columns: titles, each with its alignment, "---" or "---:"."""
    lines = [columns, columns.values(), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + "\n"
