"""`relattn bench`: settings in, progress, tables and pictures out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from relattn.bench import markdown, tables
from relattn.bench.figures import draw
from relattn.bench.results import FILE
from relattn.bench.run import Benchmark
from relattn.bench.settings import Settings
from relattn.bench.studies.study import carry_out
from relattn.cli import STOPPED
from relattn.cli.console import Bar, err, out
from relattn.support.files import write_text

TABLE_FILE = "table.md"


def run(given: dict[str, Any], folder: Path, candidates: Sequence[str] | None = None) -> None:
    """Carry out a benchmark of those candidates, or of all.

    On Ctrl-C say where the measurements done so far are, and exit with code 130.
    """
    settings = Settings(**given)
    try:
        with Bar() as bar:
            results = Benchmark(settings, folder, bar, candidates).run()
    except KeyboardInterrupt:
        err.print(f"stopped; what was measured is kept in {folder / FILE}", soft_wrap=True)
        raise typer.Exit(STOPPED) from None
    for table in tables.terminal(results):
        out.print(table)
    write_text(folder / TABLE_FILE, markdown.text(results))
    pictures = draw(results, folder)
    out.print(f"results  {folder / FILE}\nmarkdown {folder / TABLE_FILE}", soft_wrap=True)
    for picture in pictures:
        out.print(f"picture  {picture}", soft_wrap=True)


def run_study(name: str, folder: Path) -> None:
    """Carry out a study; on Ctrl-C say where the measurements done so far are, and exit with code 130."""
    try:
        with Bar() as bar:
            page = carry_out(name, folder, bar)
    except KeyboardInterrupt:
        err.print(
            f"stopped; what was measured is kept in {folder / name}.json; the same command goes on", soft_wrap=True
        )
        raise typer.Exit(STOPPED) from None
    out.print(page, markup=False, highlight=False, soft_wrap=True)
    out.print(f"results  {folder / name}.json\nmarkdown {folder / name}.md", soft_wrap=True)
