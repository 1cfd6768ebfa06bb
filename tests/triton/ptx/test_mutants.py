"""What the compiler put in and a kernel cannot do without, taken out of its PTX: the emulator finds it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests import seeds
from tests.triton.ptx.fault import Fault
from tests.triton.test_kernels import make_call, random_cotangents, run

pytest.importorskip("triton", reason="Triton is a package for Linux")
pytestmark = [
    pytest.mark.ptx,
    pytest.mark.skipif("TRITON_INTERPRET" in os.environ, reason="the interpreter's kernels cannot be compiled"),
]

KERNELS = ("forward_kernel", "queries_kernel", "keys_kernel", "tables_kernel", "every gradient")
THREE_STAGES = (64, 8, 3)
BARRIER, WAIT = r"\bbar\.sync[^;]*;", r"\bcp\.async\.wait_group\s+(\d+);"
MASKS = {
    "of stores": r"@!?%p\d+ (?=st\.global)",
    "of loads and copies": r"@!?%p\d+ (?=ld\.global)|(?<=0x10), %r\d+|(?<=0x4), %r\d+",  # of copies: bytes given
}
MET, NOT_BROUGHT = "with no barrier between", "a byte is used that cp.async has not brought yet"
OUTSIDE, UNKNOWN = "lie outside of what was handed over", "only barrier 0, of all threads, is modelled"
NEEDLESS = 1 / 3
"""Of the barriers that a kernel runs, at most: Triton puts one wherever it cannot tell."""


@pytest.fixture(scope="module")
def launches() -> dict[str, tuple[tuple, dict[str, int], int, int, int]]:
    """How each kernel was launched, forward and backward, in a call that has it walk several tiles."""
    from tests.triton.ptx import launch

    found: dict[str, Any] = {}
    plain, fused = launch.launch, False

    def noted(kernel: Any, *given: Any, precision: str) -> None:
        found["every gradient" if fused and kernel.__name__ == "queries_kernel" else kernel.__name__] = (kernel, *given)
        plain(kernel, *given, precision=precision)

    with pytest.MonkeyPatch.context() as patch:
        from relattn.backends.triton import backward

        patch.setattr(launch, "launch", noted)
        patch.setattr(backward, "is_ordered", lambda call: not fused)
        launch.emulate(THREE_STAGES, patch)
        seeds.start_torch("mutants")
        call = make_call(
            torch.bfloat16, tables=("relative_keys",), shared=True, aligned=True, heads=(1, 1), lengths=(70, 200),
            widths=(64, 64, 64), rows=340, first=-200, offset=-130, highest=0,
        )  # fmt: skip
        run(call, *random_cotangents(call))
        fused = True
        run(call, *random_cotangents(call))
    return found


def text_of(given: tuple) -> str:
    """The kernel's PTX."""
    from tests.triton.ptx.launch import launch

    texts: list[str] = []

    def keep(ptx: str) -> str:
        texts.append(ptx)
        return ptx

    launch(*given, edit=keep)
    return texts[0]


def fault_of(given: tuple, edit: Callable[[str], str]) -> str:
    """What the kernel, so edited, ends in; nothing where it ends well."""
    from tests.triton.ptx.launch import launch

    try:
        launch(*given, edit=edit)
    except Fault as fault:
        return str(fault)
    return ""


def without(pattern: str, number: int, instead: str = "") -> Callable[[str], str]:
    """The text with something in place of one of the parts that have the pattern."""

    def edit(ptx: str) -> str:
        part = list(re.finditer(pattern, ptx))[number]
        return ptx[: part.start()] + instead + ptx[part.end() :]

    return edit


@pytest.mark.parametrize("name", KERNELS)
def test_a_barrier_taken_out_is_found(name: str, launches) -> None:
    """Each that the kernel runs, but for some that it does not need."""
    given = launches[name]
    count = len(re.findall(BARRIER, text_of(given)))
    silent = [number for number in range(count) if MET not in fault_of(given, without(BARRIER, number))]
    run = [number for number in silent if UNKNOWN in fault_of(given, without(BARRIER, number, "bar.sync 1;"))]
    found = count - len(silent)
    print(f"{name}: {count} barriers, {found} are found, {len(run)} are run and not found")
    assert found >= 10
    assert len(run) <= NEEDLESS * (found + len(run))


@pytest.mark.parametrize("name", KERNELS)
def test_a_wait_taken_out_is_found(name: str, launches) -> None:
    """Every one; and those in the walk along tiles, which leave some groups under way, where they leave one more."""
    given = launches[name]
    waits = [int(groups) for groups in re.findall(WAIT, text_of(given))]
    assert max(waits) > 0, "a kernel in three stages copies beside its sums"
    for number, groups in enumerate(waits):
        assert NOT_BROUGHT in fault_of(given, without(WAIT, number))
        if groups:
            assert NOT_BROUGHT in fault_of(given, without(WAIT, number, f"cp.async.wait_group {groups + 1};"))


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("masks", MASKS)
def test_masks_taken_out_are_found(masks: str, name: str, launches) -> None:
    """Without them a kernel leaves its tensors."""
    hold_to_its_masks(MASKS[masks], launches[name])


def test_bounds_of_additions_taken_out_are_found(launches) -> None:
    """What belongs to no row is added to the row before the first, or to the one after the last."""

    def without_bounds(ptx: str) -> str:
        bounded = set(re.findall(r"max\.s32\s+(%r\d+), %r\d+, -1;", ptx))
        assert bounded
        ptx = re.sub(r"max\.s32(\s+%r\d+, %r\d+), -1;", r"mov.b32\1;", ptx)
        return re.sub(
            r"min\.s32(\s+%r\d+, (%r\d+)), %r\d+;", lambda m: f"mov.b32{m[1]};" if m[2] in bounded else m[0], ptx
        )

    assert OUTSIDE in fault_of(launches["every gradient"], without_bounds)


def hold_to_its_masks(pattern: str, given: tuple) -> None:
    assert re.search(pattern, text_of(given))
    assert OUTSIDE in fault_of(given, lambda ptx: re.sub(pattern, "", ptx))
