"""`relattn-lab reproduce`: a paper's experiment, carried out again; its table."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Any

from relattn.cli.console import Bar, out, say_stopped
from relattn_lab import lengths
from relattn_lab.checks import check_choice
from relattn_lab.lock import exclusive_folder
from relattn_lab.reproduction import RESULTS_FILE, TABLE_FILE, resume, start
from relattn_lab.settings import FILE as SETTINGS_FILE

EXPERIMENTS = ("jsb", "lengths")


def run(experiment: str, given: dict[str, Any], folder: Path, go_on: bool) -> None:
    """Carry the experiment out; on Ctrl-C and SIGTERM say how to go on, and exit with code 130 or 143.

    Raises ValueError: for an unknown experiment.
    """
    check_choice("experiment", experiment, EXPERIMENTS)
    if experiment == "lengths":
        _evaluate_lengths(given, folder)
        return
    reproduction = None
    try:
        with exclusive_folder(folder), Bar() as bar:
            reproduction = resume(folder, given, bar) if go_on else start(given, folder, bar)
            reproduction.run()
    except KeyboardInterrupt as stopped:
        if reproduction is not None:
            kept = f"stopped; {reproduction.kept()}; this is kept"
        elif (folder / SETTINGS_FILE).is_file():
            kept = "stopped before a further step; what was done before is kept"
        else:
            say_stopped(stopped, "stopped before the first step; nothing was kept")
        command = (
            f"relattn-lab reproduce {experiment} --data {quote(given['data'])} --resume --out {quote(str(folder))}"
        )
        say_stopped(stopped, f"{kept}. Go on with:\n{command}")
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
    with exclusive_folder(folder), Bar() as bar:
        table = lengths.Lengths(given["data"], folder, bar).run()
    out.print(table, soft_wrap=True, markup=False)
    out.print(f"table    {folder / lengths.TABLE_FILE}", soft_wrap=True)
