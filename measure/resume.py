"""What an interrupted benchmark has left in its folder: read, and checked to be of the same question and place."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from measure.check import Check
from measure.longest import Longest
from measure.measurements import FILE, FORMAT, PACKAGES, Measurement, Reach, Results
from measure.memory import Memory
from measure.settings import Settings
from relattn.cli.bench.timing import Spread, Timing
from relattn.cli.bench.workload import Workload
from relattn.cli.machine import machine, versions

HOW_ELSE = "give another folder, or remove the file to measure all of it again"
"""What to do with a file of figures from another machine or run."""


def resume(settings: Settings, candidates: Collection[str], folder: Path) -> Results:
    """The results that the folder holds, to go on with; new ones where it holds none.

    Raises ValueError: for a damaged file, and for one with other settings, with more candidates, of another machine, or
        of other versions.
    """
    path = folder / FILE
    if not path.exists():
        return Results(settings)
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
        there = _tuples(held["settings"])
        facts = dict(held["machine"]), dict(held["versions"])
        if held["format"] != FORMAT:
            raise ValueError
        measurements, reaches = [*map(_measurement, held["measurements"])], [*map(_reach, held["max_length"])]
        kept = Results(settings, held["date"], *facts, measurements, reaches)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(
            f"out: got {path}, which holds no results of a benchmark; expected these, or no such file; {HOW_ELSE}"
        ) from None
    check_begun_with(path, there, asdict(settings), "asked")
    if strangers := {each.candidate for each in measurements} - set(candidates):
        raise ValueError(
            f"out: got {path}, which holds {', '.join(sorted(strangers))}; expected {', '.join(candidates)} alone, as "
            f"asked; {HOW_ELSE}"
        )
    check_measured_here(path, *facts, *PACKAGES)
    return kept


def _tuples(record: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in record.items()}


def _measurement(record: dict[str, Any]) -> Measurement:
    check, memory, timing = record["check"], record["memory"], record["timing"]
    return Measurement(
        Workload(**record["workload"]),
        record["candidate"],
        record["reason"],
        check and Check(**check),
        memory and Memory(**memory),
        timing and _timing(timing),
        record["chosen"],
    )


def _timing(record: dict[str, Any]) -> Timing:
    seconds, ratio, processor = record["seconds"], record["ratio"], record["processor_ratio"]
    return Timing(
        Spread(**seconds), Spread(**ratio), processor and Spread(**processor), record["pairs"], record["rounds"]
    )


def _reach(record: dict[str, Any]) -> Reach:
    longest = record["longest"]
    return Reach(
        Workload(**record["family"]), record["candidate"], longest and Longest(**_tuples(longest)), record["reason"]
    )


def check_measured_here(
    path: Path, its_machine: Mapping[str, Any], its_versions: Mapping[str, Any], *packages: str
) -> None:
    """Figures are added to a file only on the machine that began it; its_versions: of relattn, Python and the packages.

    Raises ValueError: on another machine, or with other versions.
    """
    check_begun_with(path, its_machine, machine(), "here")
    check_begun_with(path, its_versions, versions(*packages), "here")


def check_begun_with(path: Path, there: Mapping[str, Any], here: Mapping[str, Any], where: str) -> None:
    """Figures are added to a file only with the settings that it was begun with. where: what `here` describes.

    Raises ValueError: with the first difference.
    """
    for key in [*there, *here]:
        if there.get(key) != here.get(key):
            raise ValueError(
                f"out: got {path}, which was begun with {key} {there.get(key)}; expected {here.get(key)}, as {where}; "
                f"{HOW_ELSE}"
            )
