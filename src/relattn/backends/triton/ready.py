"""Compiled kernels, launched again without Triton's look-up.

Triton compiles a kernel for its constants, its options and the specialization of its arguments: which are there, their
dtypes, which numbers are 1 or multiples of 16, how addresses are aligned. For every launch `kernel[grid](...)` asks for
these, argument by argument, and writes the options as a text. Here a key has what decides a launch's constants and
options, and the same specialization, from the same function of Triton. A launch whose key is known calls the compiled
kernel.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, NamedTuple

from triton.backends.compiler import BaseBackend
from triton.compiler.compiler import CompiledKernel
from triton.runtime.jit import native_specialize_impl


class Ready(NamedTuple):
    """A kernel as compiled; its constants: the last of its parameters, in their order; and how many queries, keys or
    rows of a table a program owns.
    """

    kernel: CompiledKernel
    constants: tuple[int, ...]
    owned: int = 1

    def launch(self, programs: int, arguments: tuple) -> None:
        """On the current device; the arguments have the specialization that the kernel was compiled for."""
        self.kernel[programs, 1, 1](*arguments, *self.constants)


remembered: dict[tuple, Ready] = {}
"""By keys that name the kernel, the device, the specialization, and all that decides constants and options."""


def specialization(arguments: tuple) -> Hashable:
    """What of the arguments decides the compiled code, as Triton has it.

    For a named tuple Triton makes two more of its type, and that takes most of the time. So it gets one plain tuple of
    what the bundles hold. No two launches of a kernel have the same row of specializations: a bundle that may be absent
    is one None then and begins with a tensor else, every other bundle is always there, and of the members one at most,
    `log_width`, varies in length. What lies deeper, the tables of listed axes, stays as it is.
    """
    return native_specialize_impl(BaseBackend, _opened(arguments), False, True, True)


def _opened(arguments: tuple) -> tuple:
    """The members of the bundles among the arguments, and of the bundles in these."""
    members = []
    add, add_all = members.append, members.extend
    for argument in arguments:
        if isinstance(argument, tuple):
            for member in argument:
                if isinstance(member, tuple):
                    add_all(member)
                else:
                    add(member)
        else:
            add(argument)
    return tuple(members)


def keep(key: tuple, launched: Any, constants: tuple[int, ...], owned: int = 1) -> None:
    """Remember what kernel[grid](...) returned; Triton's interpreter compiles nothing, and returns None."""
    if isinstance(launched, CompiledKernel):
        remembered[key] = Ready(launched, constants, owned)
