"""Where figures are measured: the machine, and the versions of the packages."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

import relattn

HOW_ELSE = "give another folder, or remove the file to measure all of it again"
"""What to do with a file of figures from another machine or run."""


def machine() -> dict[str, Any]:
    """System, processor, the set of instructions that PyTorch uses, cores, threads, accelerators."""
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "accelerators": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())],
    }


def versions(*packages: str) -> dict[str, str | None]:
    """The versions of relattn, of Python and of each package; None for a package that is not installed."""
    found: dict[str, str | None] = {"relattn": relattn.__version__, "python": platform.python_version()}
    return found | {name: _version(name) for name in packages}


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


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or "unknown"
