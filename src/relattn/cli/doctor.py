"""`relattn doctor`: versions, devices, and the backends, each tried on a small problem."""

from __future__ import annotations

import torch
import torch.distributed as dist
from rich.table import Table
from rich.text import Text

import relattn
from relattn.backends.cpu.library import Kernels, has_threads, kernels
from relattn.backends.select import BACKENDS
from relattn.cli.console import out
from relattn.cli.files import reason_of
from relattn.cli.machine import machine, versions

PACKAGES = (
    "relattn-lab", "torch", "triton", "numpy", "safetensors", "transformers", "accelerate", "music21", "mido",
    "matplotlib",
)  # fmt: skip
KEYS = 16
TOLERANCE = 1e-4
"""Far above what float32 rounding makes of 16 keys, far below what a wrong term makes."""


def run() -> None:
    """Print the tables."""
    out.print(_versions())
    out.print(_devices())
    out.print(_several())
    for device in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
        out.print(_backends(device))


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    for heading in columns:
        table.add_column(heading)
    return table


def _versions() -> Table:
    table = _table("Versions", "package", "version")
    for name, version in versions(*PACKAGES).items():
        table.add_row(name, version or "not installed")
    return table


def _devices() -> Table:
    table = _table("Devices", "device", "what it is")
    found = machine()
    cores = f"{found['cores']} cores, {found['torch_threads']} threads for torch"
    table.add_row("cpu", f"{found['processor']}, {found['instructions']}, {found['system']}, {cores}")
    table.add_row("native kernels", _kernels())
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        table.add_row(f"cuda:{index}", f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB")
    if not torch.cuda.is_available():
        why = "torch was built without CUDA" if torch.version.cuda is None else "no GPU found"
        table.add_row("cuda", f"none: {why}")
    return table


def _kernels() -> str:
    """The instruction set of the compiled kernels and their threads, or why there are none."""
    found = kernels()
    if not isinstance(found, Kernels):
        return f"none: {found}"
    return f"{found.name}, {'the threads of torch' if has_threads() else 'one thread: no OpenMP runtime was found'}"


def _several() -> Table:
    table = _table("Several processes", "engine", "what is there")
    without = "not in this build of torch"
    if not dist.is_available():
        table.add_row("torch.distributed", without)
    else:
        found = {"gloo": dist.is_gloo_available(), "nccl": dist.is_nccl_available(), "mpi": dist.is_mpi_available()}
        devices = {"gloo": "CPUs", "nccl": "one GPU per process", "mpi": "devices that MPI supports"}
        for name, there in found.items():
            table.add_row(name, f"there, for {devices[name]}" if there else without)
        table.add_row("DeviceMesh", "there: relattn.distributed splits sequences and heads over one")
    accelerate = versions("accelerate")["accelerate"]
    starts = "by which relattn-lab compare shares its work"
    table.add_row("accelerate", "not installed" if accelerate is None else f"{accelerate}, {starts}")
    gpus = torch.cuda.device_count()
    table.add_row("devices", f"{gpus} GPUs" if gpus > 1 else "1 GPU" if gpus else "CPU alone")
    return table


def _backends(device: str) -> Table:
    """Each backend on attention without relative keys, with them, and on one query, for which some have a separate
    kernel. A cell says that the backend runs and agrees with the reference, or why not.
    """
    relative = relattn.RelativeEmbedding(8, KEYS, causal=True).to(device)
    problems = {"plain attention": (None, KEYS), "relative keys": (relative, KEYS), "one query": (relative, 1)}
    table = _table(f"Backends on {device}", "backend", *problems)
    for name in BACKENDS:
        table.add_row(name, *(_try(name, encoding, queries, device) for encoding, queries in problems.values()))
    return table


@torch.no_grad()
def _try(backend: str, encoding: relattn.RelativeEncoding | None, queries: int, device: str) -> str | Text:
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(1, 2, KEYS, 8, generator=generator).to(device) for _ in range(3))
    given = {"is_causal": True, "encoding": encoding, "query_position": KEYS - queries}

    def answer(backend: str) -> torch.Tensor:
        return relattn.relative_attention(query[:, :, -queries:], key, value, backend=backend, **given)

    try:
        found = answer(backend)
    except relattn.UnsupportedError as error:
        return Text("; ".join(error.reasons[backend]))
    except Exception as error:  # kernels are compiled here, and a compiler may be missing
        return Text(f"fails: {type(error).__name__}: {reason_of(error)}", style="red")
    difference = (found - answer("reference")).abs().max().item()
    return "usable" if difference < TOLERANCE else Text(f"wrong by {difference:.2g}", style="red")
