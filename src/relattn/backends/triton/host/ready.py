"""Compiled kernels, launched again without Triton's look-up.

Triton compiles a kernel for its constants, its options and the specialization of its arguments: which are there, their
dtypes, which numbers are 1 or multiples of 16, how addresses are aligned. For every launch `kernel[grid](...)` asks for
these, argument by argument, and writes the options as a text. Here a launch is known by what decides its constants and
options, and by the same specialization, from the same function of Triton. A launch that is known calls the compiled
kernel.

What of Triton's launch is not public is called here alone. Where this Triton lacks `specialize` or a method that is
called here, nothing is kept, and each launch is Triton's own.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton.runtime.jit
from triton import knobs
from triton.backends.compiler import BaseBackend
from triton.compiler.compiler import CompiledKernel
from triton.runtime.driver import driver

from relattn.backends.triton.host.opened import opened

specialize: Any = getattr(triton.runtime.jit, "native_specialize_impl", None)
"""What of arguments decides the code that is compiled for them."""


def _can_relaunch() -> bool:
    """Whether this Triton has what a launch without its look-up calls, and it answers as it did where we tried it."""
    has = all(hasattr(CompiledKernel, name) for name in ("run", "_init_handles")) and hasattr(knobs, "HookChain")
    try:
        return has and len(specialize(BaseBackend, (1, None), False, True, True)) == 2
    except TypeError:
        return False


CAN_RELAUNCH = _can_relaunch()


class Ready(NamedTuple):
    """A kernel as compiled; its constants: the last of its parameters, in their order; and how many queries, keys or
    rows of a table a program owns.
    """

    kernel: CompiledKernel
    constants: tuple[int, ...]
    owned: int = 1

    def launch(self, programs: int, arguments: tuple) -> None:
        """On the current device; the arguments have the specialization that the kernel was compiled for.

        What Triton does for its hooks is left out while nobody has added one.
        """
        if _has_hooks():
            self.kernel[programs, 1, 1](*arguments, *self.constants)
            return
        kernel: Any = self.kernel
        active: Any = driver.active
        stream = active.get_current_stream(active.get_current_device())
        kernel.run(
            programs, 1, 1, stream, kernel.function, kernel.packed_metadata, None, None, None, *arguments,
            *self.constants,
        )  # fmt: skip


def _has_hooks() -> bool:
    """Whether Triton was given something to call at each launch."""
    enter, leave = knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook
    are_chains = isinstance(enter, knobs.HookChain) and isinstance(leave, knobs.HookChain)
    return not are_chains or bool(enter.calls or leave.calls)


remembered: dict[tuple, list[tuple[tuple, Ready]]] = {}
"""The kept kernels, each with its specialization, in lists: by kernel, device, and what else decides constants and
options. In a list the one that was launched last stands first.
"""


def recall(known_by: tuple, arguments: tuple) -> Ready | None:
    """The kept kernel of this list for arguments of this specialization.

    To compare a hundred members with those of the first few takes less time than to hash them.
    """
    if (several := remembered.get(known_by)) is None:
        return None
    signature = specialization(arguments)
    if several[0][0] == signature:
        return several[0][1]
    for place, (other, ready) in enumerate(several[1:], 1):
        if other == signature:
            several[0], several[place] = several[place], several[0]
            return ready
    return None


def specialization(arguments: tuple) -> tuple:
    """What of the arguments decides the compiled code, as Triton has it.

    For a named tuple Triton makes two more of its type, and that takes most of the time. So it gets one plain tuple of
    what the bundles hold, and their form stands beside it.
    """
    form, leaves = opened(arguments)
    return form, specialize(BaseBackend, leaves, False, True, True)


def keep(
    known_by: tuple, arguments: tuple, launched: Any, constants: tuple[int, ...], owned: int = 1
) -> Ready | None:  # fmt: skip
    """Remember what kernel[grid](...) returned; Triton's interpreter compiles nothing, and returns None."""
    if not CAN_RELAUNCH or not isinstance(launched, CompiledKernel):
        return None
    ready = Ready(launched, constants, owned)
    remembered.setdefault(known_by, []).insert(0, (specialization(arguments), ready))
    return ready
