"""`python -m measure`: settings in, progress, tables and pictures out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from measure import markdown, tables
from measure.measurements import FILE
from measure.pictures import draw
from measure.run import Benchmark
from measure.settings import Settings
from measure.studies.catalogue import GRIDS
from measure.studies.study import carry_out
from relattn.cli.console import Bar, out, say_stopped
from relattn_lab.lock import exclusive_folder
from relattn_lab.support.files import write_text

TABLE_FILE = "table.md"


def run(given: dict[str, Any], folder: Path) -> None:
    """Carry out a benchmark; on Ctrl-C and SIGTERM say where the measurements done so far are, and exit with the code
    of the signal.

    Raises BlockingIOError: when another process is at work in the folder; so do the others here.
    """
    _measure(Settings(**given), folder, None, "")


def run_grid(name: str, out: Path) -> None:
    """Carry out a grid of the catalogue in a folder of its own, as `run`."""
    grid = GRIDS[name]
    torch.set_num_threads(grid.threads)
    heading = f"# {grid.answers}\n\n```sh\npython -m measure {name}\n```\n\n"
    _measure(Settings(**grid.settings), out / name, grid.candidates, heading)


def _measure(settings: Settings, folder: Path, candidates: Sequence[str] | None, heading: str) -> None:
    with exclusive_folder(folder):
        try:
            with Bar() as bar:
                results = Benchmark(settings, folder, bar, candidates).run()
        except KeyboardInterrupt as stopped:
            say_stopped(stopped, _kept(folder / FILE))
        for table in tables.terminal(results):
            out.print(table)
        write_text(folder / TABLE_FILE, heading + markdown.text(results))
        pictures = draw(results, folder)
    out.print(f"results  {folder / FILE}\nmarkdown {folder / TABLE_FILE}", soft_wrap=True)
    for picture in pictures:
        out.print(f"picture  {picture}", soft_wrap=True)


def run_study(name: str, folder: Path) -> None:
    """Carry out a study; on Ctrl-C and SIGTERM as `run`."""
    try:
        with exclusive_folder(folder), Bar() as bar:
            page = carry_out(name, folder, bar)
    except KeyboardInterrupt as stopped:
        say_stopped(stopped, _kept(folder / f"{name}.json"))
    out.print(page, soft_wrap=True)
    out.print(f"results  {folder / name}.json\nmarkdown {folder / name}.md", soft_wrap=True)


def _kept(results: Path) -> str:
    if results.exists():
        return f"stopped; what was measured is kept in {results}; the same command goes on"
    return "stopped; nothing was measured yet"
