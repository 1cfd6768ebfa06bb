"""`result.json`, what a finished run leaves: its figures, read again whole or refused."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FILE = "result.json"


def read_record(path: Path, encoding: str, seed: int, steps: int, lengths: Mapping[str, int]) -> dict[str, Any]:
    """The record of the run with this encoding and seed, of so many steps.

    lengths: of the windows of each evaluation, by its name.

    Raises ValueError: when the file is damaged, or is another run's.
    """
    try:
        record = json.loads(path.read_bytes())
        _check(record, {"encoding": encoding, "seed": seed, "steps": steps}, lengths)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(
            f"resume: got {path}, which is damaged ({type(error).__name__}: {error}); expected what this comparison "
            "wrote; remove it, and --resume trains that run again"
        ) from error
    return record


def _check(record: dict[str, Any], run: dict[str, Any], lengths: Mapping[str, int]) -> None:
    """ValueError, KeyError, TypeError or AttributeError unless the record is whole."""
    for name, expected in run.items():
        if record[name] != expected or isinstance(record[name], bool):
            raise ValueError(f"{name}: got {record[name]!r}; expected {expected!r}")
    for name in ("parameters", "processes"):
        _check_number(name, record[name])
    if record["seconds_per_step"] is not None:
        _check_number("seconds_per_step", record["seconds_per_step"])
    for name in ("training", "validation"):
        if not record[name]:
            raise ValueError(f"{name}: got no entry; expected some")
        for step, loss in record[name]:
            _check_number(name, step)
            _check_number(name, loss)
    if set(record["evaluation"]) != set(lengths):
        raise ValueError(f"evaluation: got {sorted(record['evaluation'])}; expected {sorted(lengths)}")
    for name, length in lengths.items():
        losses = record["evaluation"][name]
        _check_number("nats", losses["nats"])
        _check_number("tokens", losses["tokens"])
        if not len(losses["by_position"]) == len(losses["count"]) == length:
            raise ValueError(f"by_position, count: got other than {length} entries")
        for nats, count in zip(losses["by_position"], losses["count"], strict=True):
            _check_number("count", count)
            if nats is not None or count:
                _check_number("by_position", nats)


def _check_number(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{name}: got {value!r}; expected a finite number")
