"""`relattn reproduce`: a paper's experiment, carried out again; its table."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Any

import typer

from relattn.arguments import check_choice
from relattn.cli import STOPPED
from relattn.cli.console import Bar, err, out, terminated_as_interrupted
from relattn.lab import lengths
from relattn.lab.lock import alone_in
from relattn.lab.reproduction import RESULTS_FILE, TABLE_FILE, resume, start

EXPERIMENTS = ("jsb", "lengths")


def run(experiment: str, given: dict[str, Any], folder: Path, go_on: bool) -> None:
    """Carry the experiment out; on Ctrl-C and SIGTERM say how to go on, and exit with code 130.

    Raises ValueError: for an unknown experiment.
    """
    check_choice("experiment", experiment, EXPERIMENTS)
    if experiment == "lengths":
        _evaluate_lengths(given, folder)
        return
    try:
        with alone_in(folder), terminated_as_interrupted(), Bar() as bar:
            reproduction = resume(folder, given, bar) if go_on else start(given, folder, bar)
            reproduction.run()
    except KeyboardInterrupt:
        command = f"relattn reproduce {experiment} --data {quote(given['data'])} --resume --out {quote(str(folder))}"
        err.print(f"stopped; what is done is kept. Go on with:\n{command}", soft_wrap=True)
        raise typer.Exit(STOPPED) from None
    out.print((folder / TABLE_FILE).read_text(encoding="utf-8"), soft_wrap=True, markup=False)
    out.print(f"table    {folder / TABLE_FILE}\nresults  {folder / RESULTS_FILE}", soft_wrap=True)


def _evaluate_lengths(given: dict[str, Any], folder: Path) -> None:
    """The models of `jsb` on longer windows.

    Raises ValueError: for choices of training.
    """
    others = [f"--{name}" for name in given if name != "data"]
    if others:
        raise ValueError(
            f"options: got {', '.join(others)}; expected --data and --out alone, for `lengths` trains nothing: it "
            "evaluates the models that `jsb` has left in --out"
        )
    with alone_in(folder), Bar() as bar:
        table = lengths.Lengths(given["data"], folder, bar).run()
    out.print(table, soft_wrap=True, markup=False)
    out.print(f"table    {folder / lengths.TABLE_FILE}", soft_wrap=True)
