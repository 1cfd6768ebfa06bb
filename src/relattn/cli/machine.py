"""Where figures are measured: the machine, and the versions of the packages."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from typing import Any

import torch

import relattn


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
