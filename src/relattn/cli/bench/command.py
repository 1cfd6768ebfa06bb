"""`relattn bench`: settings in, progress and tables out."""

from __future__ import annotations

from typing import Any

from relattn.cli.bench.relattn_candidates import CANDIDATES
from relattn.cli.bench.run import Figure, figures
from relattn.cli.bench.settings import Settings
from relattn.cli.bench.table import tables
from relattn.cli.console import Bar, out, say_stopped

STOPPED = "stopped; the tables show what was measured until then"


def run(given: dict[str, Any]) -> None:
    """Measure, and print the tables; on Ctrl-C and SIGTERM those of what was measured until then, and exit with the
    code of the signal.
    """
    settings = Settings(**given)
    found: list[Figure] = []
    try:
        with Bar() as bar:
            bar.begin("benchmark", len(list(settings.workloads())) * len(CANDIDATES))
            for figure in figures(settings, bar.advance):
                found.append(figure)
    except KeyboardInterrupt as stopped:
        _print(found)
        say_stopped(stopped, STOPPED)
    _print(found)


def _print(found: list[Figure]) -> None:
    for table in tables(found):
        out.print(table)
