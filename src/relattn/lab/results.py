"""The results of a comparison as data: what a run measured, what all runs come to, and what they ran on."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import statistics
from dataclasses import dataclass
from typing import Any

import torch

import relattn
from relattn.lab.losses import Losses

FORMAT = 1
PACKAGES = ("torch", "transformers", "accelerate", "numpy", "music21")


@dataclass(frozen=True)
class Summary:
    """Nats per token over seeds: their mean, and their sample standard deviation (None for a single seed)."""

    mean: float
    spread: float | None


def summarize(values: list[float]) -> Summary:
    """Mean and sample standard deviation of the seeds' figures."""
    return Summary(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None)


def losses_record(losses: Losses) -> dict[str, Any]:
    """Losses as JSON: nats per token and tokens counted, in all and at each position (None where none was)."""
    by_position = [
        round(float(total) / int(count), 5) if count else None
        for total, count in zip(losses.total, losses.count, strict=True)
    ]
    return {"nats": losses.mean, "tokens": losses.tokens, "by_position": by_position, "count": losses.count.tolist()}


def versions() -> dict[str, str]:
    """Version of relattn, Python and every package that has a say in the figures."""
    found = {"relattn": relattn.__version__, "python": platform.python_version()}
    return found | {name: importlib.metadata.version(name) for name in PACKAGES}


def machine() -> dict[str, Any]:
    """What the runs ran on: system, processor, threads, accelerators."""
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "accelerators": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())],
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or "unknown"
