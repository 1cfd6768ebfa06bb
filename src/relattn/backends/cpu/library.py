"""The compiled kernels. They lie beside this file, and are called with the address of a struct."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

from relattn.backends.cpu.sources import digest
from relattn.checks.values import check_choice

FILE = Path(__file__).with_name("_kernels.so")
SOURCES = Path(__file__).with_name("kernels")
"""The folder exists only in a checkout: an installed package has only the binary."""
SETS = ("avx512bf16", "avx512", "avx2", "generic")
"""The instruction sets that the kernels are compiled for, the widest first."""


class Kernels(NamedTuple):
    """The functions of one instruction set. Each takes the address of a struct: `Call` of kernels/call.h.

    workspace: the number of floats that a forward (0) or backward (1) pass needs at the struct's `workspace`.
        few_workspace: the same for `few`, the forward pass for few queries. rotate: takes the bytes of a `Rotation` of
        kernels/rotation.h.
    """

    name: str
    workspace: Callable[[int, int], int]
    forward: Callable[[int], None]
    backward: Callable[[int], None]
    few_workspace: Callable[[int], int]
    few: Callable[[int], None]
    rotate: Callable[[bytes], None]


@cache
def kernels() -> Kernels | str:
    """The functions of the widest instruction set that this machine runs, or a sentence that says why there are none.

    The environment variable RELATTN_NATIVE names another set, or "off".

    Raises ValueError: for another value of the variable.
    """
    choice = os.environ.get("RELATTN_NATIVE", "")
    if choice:
        check_choice("RELATTN_NATIVE", choice, (*SETS, "off"))
    if choice == "off":
        return "RELATTN_NATIVE=off switches its kernels off"
    if not FILE.exists():
        return f"its kernels were not compiled when relattn was installed{_said_by_the_compiler()}"
    try:
        library = ctypes.CDLL(str(FILE))
    except OSError as error:
        return f"its kernels cannot be loaded; install relattn again: {error}"
    library.relattn_sources.restype = ctypes.c_char_p
    if SOURCES.exists() and library.relattn_sources().decode() != digest(SOURCES):
        reason = _said_by_the_compiler()
        return f"its kernels were compiled from other sources than lie beside them; install relattn again{reason}"
    runnable = [name for name in SETS if name == "generic" or _runs(library, name)]
    if choice and choice not in runnable:
        return f"RELATTN_NATIVE={choice} asks for instructions that this processor lacks"
    name = choice or runnable[0]
    functions = {what: getattr(library, f"relattn_{what}_{name}") for what in Kernels._fields[1:]}
    for what, function in functions.items():
        function.argtypes, function.restype = [ctypes.c_void_p], None
        if what.endswith("workspace"):
            function.restype = ctypes.c_int64
    functions["workspace"].argtypes = [ctypes.c_void_p, ctypes.c_int64]
    return Kernels(name, **functions)


def has_threads() -> bool:
    """Whether the loaded kernels found the OpenMP runtime of PyTorch; without it they run on one thread."""
    return bool(ctypes.CDLL(str(FILE)).relattn_has_threads())


def _said_by_the_compiler() -> str:
    """The compiler's first error, as setup.py keeps it."""
    failure = FILE.with_suffix(".failed")
    lines = failure.read_text().splitlines() if failure.exists() else []
    errors = [line for line in lines if "error" in line.lower()] or lines
    return f": {errors[0].strip()}" if errors else ""


def _runs(library: ctypes.CDLL, name: str) -> bool:
    return hasattr(library, f"relattn_forward_{name}") and bool(getattr(library, f"relattn_runs_{name}")())
