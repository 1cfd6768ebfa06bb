"""`relattn-lab compare`: settings in, progress and a table out."""

from __future__ import annotations

import traceback
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from shlex import quote
from typing import Any

import typer
from rich.table import Table

from relattn.cli import REFUSED
from relattn.cli.console import TYPED, Bar, one_sentence, out, say_stopped
from relattn.cli.stopped import exit_code
from relattn_lab.checks import check_choice
from relattn_lab.compare import REPORT_FILE, RESULTS_FILE, Comparison, resume, start
from relattn_lab.config_file import read_config
from relattn_lab.lock import exclusive_folder
from relattn_lab.processes import ElsewhereError, Processes
from relattn_lab.report import NGRAM, best_of
from relattn_lab.results import Summary
from relattn_lab.settings import FILE as SETTINGS_FILE
from relattn_lab.settings import Settings
from relattn_lab.support.progress import Silent
from relattn_lab.trainer import DivergedError

BEST = "bold"


def run(
    given: dict[str, Any], folder: Path, go_on: bool, *, config: Path | None, at_least: bool, report_to: tuple[str, ...]
) -> None:
    """Carry out a comparison; on Ctrl-C and SIGTERM say what is kept and how to go on, and exit with code 130 or 143.

    Of several processes only the main one prints, except for errors of another process; none of them returns.

    given: what the command line names, over what `config` does. report_to: see `check_reporters`.
    """
    processes = Processes()
    try:
        with one_sentence():
            model, results = _carried_out(processes, given, folder, go_on, config, at_least, report_to)
        if processes.is_main:
            out.print(table(results))
            out.print(f"report   {folder / REPORT_FILE}\nresults  {folder / RESULTS_FILE}", soft_wrap=True)
            out.print(f"compose  relattn-lab compose --checkpoint {quote(str(model))}", soft_wrap=True)
    except typer.Exit as stop:
        processes.leave(stop.exit_code)
        raise
    except Exception:  # a bug
        if processes.count > 1:
            traceback.print_exc()
        processes.leave(1)
        raise
    processes.leave(0)


def _carried_out(
    processes: Processes, given: dict[str, Any], folder: Path, go_on: bool, config: Path | None, at_least: bool,
    report_to: tuple[str, ...],
) -> tuple[Path, dict[str, Any]]:  # fmt: skip
    """The folder of the first model, and the results."""
    comparison = None
    try:
        with ExitStack() as stack:
            given = processes.on_main(lambda: _checked(given, config, report_to))
            processes.on_main(lambda: _enter(stack, folder))
            progress = stack.enter_context(Bar()) if processes.is_main else Silent()
            if go_on:
                comparison = resume(folder, given, progress, report_to=report_to)
            else:
                settings = processes.on_main(lambda: Settings.from_dict(given))
                comparison = start(settings, folder, progress, at_least=at_least, report_to=report_to)
            progress.say(f"{comparison.count} runs of {comparison.plan.steps} steps")
            results = comparison.run()
    except KeyboardInterrupt as stopped:
        if not processes.is_main:
            processes.leave_after_main(exit_code(stopped))
        say_stopped(stopped, _how_to_go_on(comparison, folder, processes.count))
    except (ElsewhereError, DivergedError):
        if not processes.is_main:
            processes.leave_after_main(REFUSED)
        raise
    return comparison.folder(comparison.settings.encodings[0], comparison.settings.seeds[0]) / "model", results


REPORTERS = {"tensorboard": "tensorboard", "wandb": "wandb"}
"""Where the Trainer can report the curves, and the package that this needs."""


def check_reporters(names: tuple[str, ...]) -> None:
    """Every name is one of REPORTERS, and its package is there.

    Raises ValueError: when one is not.
    """
    for name in names:
        check_choice("report_to", name, REPORTERS)
        if find_spec(REPORTERS[name]) is None:
            raise ValueError(
                f"report_to: got {name!r}, whose package is not installed; expected it; install it: pip install "
                f"{REPORTERS[name]}"
            )


def _checked(given: dict[str, Any], config: Path | None, report_to: tuple[str, ...]) -> dict[str, Any]:
    """What the command line and the file choose.

    Raises ValueError: as `check_reporters` and `read_config`.
    """
    check_reporters(report_to)
    if config is None:
        return given
    read = read_config(config)
    TYPED.set({**TYPED.get(), **{name: f"{config}: {name}" for name in read if name not in given}})
    return _over(given, read)


def _over(given: dict[str, Any], read: dict[str, Any]) -> dict[str, Any]:
    """The choices of a file, replaced by those of the command line.

    Steps on the command line replace minutes in the file.
    """
    if "steps" in given:
        read = {name: value for name, value in read.items() if name != "minutes"}
    if "minutes" in given:
        read = {name: value for name, value in read.items() if name != "steps"}
    return read | given


def table(results: dict[str, Any]) -> Table:
    """Nats per token of the n-gram and of every encoding, at each length; the lowest row is bold."""
    lengths = [str(length) for length in results["lengths"]]
    shown = Table(title=f"Negative log-likelihood on held-out pieces, nats per token ({results['data']['name']})")
    shown.add_column("encoding")
    for factor, length in zip(("trained length", "twice", "four times"), lengths, strict=True):
        shown.add_column(f"{factor}\n{length} tokens", justify="right")
    best = best_of(results)
    ngram = (f"{results['ngram'][length]['nats']:.3f}" for length in lengths)
    shown.add_row(NGRAM, *ngram, end_section=True, style=BEST if best == NGRAM else None)
    for encoding, by_length in results["summary"].items():
        figures = (Summary(**by_length[length]).shown() for length in lengths)
        shown.add_row(encoding, *figures, style=BEST if best == encoding else None)
    return shown


def _enter(stack: ExitStack, folder: Path) -> None:
    """Until the stack is left, no other command works in the folder."""
    stack.enter_context(exclusive_folder(folder))


def _how_to_go_on(comparison: Comparison | None, folder: Path, processes: int) -> str:
    if comparison is not None:
        kept = f"stopped; {comparison.kept()}; this is kept"
    elif (folder / SETTINGS_FILE).is_file():
        kept = "stopped before a further step; what was done before is kept"
    else:
        return "stopped before the first step; nothing was kept"
    command = "relattn-lab" if processes == 1 else f"torchrun --nproc-per-node {processes} -m relattn_lab"
    return f"{kept}. Go on with:\n{command} compare --resume --out {quote(str(folder))}"
