"""What an interrupted benchmark has left in its folder: read, and checked to be of the same question and place."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from relattn.bench.longest import Longest
from relattn.bench.memory import Memory
from relattn.bench.results import FILE, FORMAT, Measurement, Reach, Results
from relattn.bench.settings import Settings
from relattn.bench.timing import Spread, Timing
from relattn.bench.truth import Check
from relattn.bench.workload import Workload
from relattn.support.machine import check_measured_here

HOW_ELSE = "give another folder, or remove the file to measure all of it again"


def begun(settings: Settings, folder: Path) -> Results:
    """The results that the folder holds, to go on with; new ones where it holds none.

    Raises ValueError: for a damaged file, and for one with other settings, of another machine, or of other versions.
    """
    path, new = folder / FILE, Results(settings)
    if not path.exists():
        return new
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
        if held["format"] != FORMAT:
            raise ValueError
        measurements, reaches = [*map(_measurement, held["measurements"])], [*map(_reach, held["max_length"])]
        kept = Results(
            Settings(**_tuples(held["settings"])),
            held["date"],
            held["machine"],
            held["versions"],
            measurements,
            reaches,
        )
    except (ValueError, KeyError, TypeError):
        raise ValueError(
            f"out: got {path}, which holds no results of a benchmark; expected these, or no such file; {HOW_ELSE}"
        ) from None
    there, here = asdict(kept.settings), asdict(settings)
    for name in there:
        if there[name] != here[name]:
            raise ValueError(
                f"out: got {path}, which was begun with {name} {there[name]}; expected {here[name]}, as asked; "
                f"{HOW_ELSE}"
            )
    check_measured_here(path, kept.machine, kept.versions, new.machine, new.versions)
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
    spreads = {name: record[name] and Spread(**record[name]) for name in ("seconds", "ratio", "processor_ratio")}
    return Timing(**record | spreads)


def _reach(record: dict[str, Any]) -> Reach:
    longest = record["longest"]
    return Reach(
        Workload(**record["family"]), record["candidate"], longest and Longest(**_tuples(longest)), record["reason"]
    )
