"""Kernels that are launched and do nothing, for what needs neither a GPU nor their numbers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

from torch import Tensor
from triton.compiler.compiler import CompiledKernel
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from measure.triton_launch import NoDriver
from relattn.backends.triton.host import ready, reasons


class Launch(NamedTuple):
    """A launch. options: for what the kernel was compiled, the arguments' specialization among them. leaves: its
    arguments and constants, tensors as addresses.
    """

    kernel: str
    options: dict[str, Any]
    programs: int
    leaves: list[Any]


class Silent(CompiledKernel):
    """In place of a compiled kernel: notes its launches."""

    def __init__(self, name: str, options: dict[str, Any], launched: list[Launch]) -> None:
        self.name, self.options, self.launched = name, options, launched
        self.function = self.packed_metadata = None

    def run(self, programs: int, *given: Any) -> None:
        self.launched.append(Launch(self.name, self.options, programs, leaves_of(given[8:])))


def leaves_of(argument: Any) -> list[Any]:
    if isinstance(argument, tuple):
        return [leaf for each in argument for leaf in leaves_of(each)]
    return [argument.data_ptr() if isinstance(argument, Tensor) else argument]


@contextmanager
def silent() -> Iterator[list[Launch]]:
    """The CPU takes the place of a GPU, and nothing is compiled. Returns what is launched."""
    launched: list[Launch] = []

    def run(kernel: Any, *arguments: Any, grid: tuple[int, ...], warmup: bool, **named: Any) -> Silent:
        named["specialization"] = ready.specialization(arguments)
        constants = [named.pop(name) for name in kernel.arg_names[len(arguments) :]]
        launched.append(Launch(kernel.__name__, named, grid[0], [*leaves_of(arguments), *constants]))
        return Silent(kernel.__name__, named, launched)

    with (
        patch.object(JITFunction, "run", run),
        patch.object(driver, "_active", NoDriver()),
        patch.dict(ready.remembered, clear=True),
        patch.object(reasons, "of_the_place", lambda device, index: []),
    ):
        yield launched
