"""`relattn bench`: settings in, progress, tables and pictures out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from relattn.bench import markdown, tables
from relattn.bench.figures import draw
from relattn.bench.results import FILE
from relattn.bench.run import run as run_benchmark
from relattn.bench.settings import Settings
from relattn.cli import STOPPED
from relattn.cli.console import Bar, err, out
from relattn.support.files import write_text

TABLE_FILE = "table.md"


def run(given: dict[str, Any], folder: Path) -> None:
    """Carry out a benchmark; on Ctrl-C say where the measurements done so far are, and exit with code 130."""
    settings = Settings(**given)
    try:
        with Bar() as bar:
            results = run_benchmark(settings, folder, bar)
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
