"""Where figures are measured: the machine, and the versions of the packages."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any

import torch

import relattn

Facts = dict[str, Any]
"""What `machine` or `versions` says."""
HOW_ELSE = "give another folder, or remove the file to measure all of it again"
"""What to do with a file of figures that are another's."""


def machine() -> Facts:
    """System, processor, the set of instructions that PyTorch uses, cores, threads, accelerators."""
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "accelerators": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())],
    }


def versions(*packages: str) -> Facts:
    """The versions of relattn, of Python and of each package; None for a package that is not installed."""
    found: Facts = {"relattn": relattn.__version__, "python": platform.python_version()}
    return found | {name: _version(name) for name in packages}


def check_measured_here(path: Path, its_machine: Facts, its_versions: Facts, *packages: str) -> None:
    """The figures of a file go on where they were begun; its_versions: of relattn, Python and the packages.

    Raises ValueError: on another machine, or with other versions.
    """
    for there, here in ((its_machine, machine()), (its_versions, versions(*packages))):
        for key in there | here:
            if there.get(key) != here.get(key):
                raise ValueError(
                    f"out: got {path}, which was begun with {key} {there.get(key)}; expected {here.get(key)}, as here; "
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
