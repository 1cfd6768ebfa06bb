"""What the compiler put in and a kernel cannot do without, taken out of its PTX: the emulator finds it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from functools import cache, partial
from typing import Any

import pytest
import torch

from ptxemu.fault import Fault
from tests import seeds
from tests.triton.test_kernels import make_call, random_cotangents, run

pytest.importorskip("triton", reason="Triton is a package for Linux")
pytestmark = [
    pytest.mark.ptx,
    pytest.mark.skipif("TRITON_INTERPRET" in os.environ, reason="the interpreter's kernels cannot be compiled"),
]

THREE_STAGES, ONE_STAGE = (64, 8, 3), (16, 4, 1)
WALK: dict[str, Any] = {
    "tables": ("relative_keys",), "shared": True, "aligned": True, "heads": (1, 1), "lengths": (70, 200),
    "widths": (64, 64, 64), "rows": 340, "first": -200, "offset": -130, "highest": 0,
}  # fmt: skip
"""Programs walk over several tiles."""
EXPLICIT: dict[str, Any] = {
    "tables": (), "aligned": True, "heads": (1, 1), "lengths": (34, 50), "widths": (16, 16, 16),
    "axes": ({"number": 1, "rows": 21, "first": -10, "own": 8},),
}  # fmt: skip
A_BIAS: dict[str, Any] = {**EXPLICIT, "axes": ({"number": 1, "rows": 21, "first": -10, "tables": ("bias",)},)}
"""The first sums in memory are those of its numbers."""
FEW: dict[str, Any] = {
    "tables": ("relative_keys",), "heads": (1, 1), "lengths": (3, 260), "widths": (48, 48, 48), "offset": -257,
    "rows": 33, "first": -16,
}  # fmt: skip
"""The last tile of keys reaches further than the numbers that lie beyond a tensor."""
SCENES: dict[str, tuple[tuple[int, ...], bool, dict[str, Any]]] = {
    "deterministic": (THREE_STAGES, True, WALK),
    "every gradient": (THREE_STAGES, False, WALK),
    "a float mask": (THREE_STAGES, False, {**WALK, "added": "hqk"}),
    "a float mask, deterministic": (THREE_STAGES, True, {**WALK, "added": "hqk"}),
    "explicit": (ONE_STAGE, False, EXPLICIT),
    "explicit, deterministic": (ONE_STAGE, True, EXPLICIT),
    "a bias of explicit positions": (ONE_STAGE, False, A_BIAS),
    "few queries": (ONE_STAGE, True, FEW),
}
"""Sizes, whether deterministic, and a call."""
COPYING = {
    "forward_kernel": "deterministic",
    "queries_kernel": "deterministic",
    "keys_kernel": "deterministic",
    "tables_kernel": "deterministic",
    "every gradient": "every gradient",
    "mask_kernel": "a float mask",
    "several_kernel": "a float mask, deterministic",
}
"""Kernels that copy beside their sums, and where they are found."""
WITHOUT_COPIES = {
    "every gradient of explicit positions": "explicit",
    "rows_kernel": "explicit, deterministic",
    "split_keys_kernel": "few queries",
    "merge_kernel": "few queries",
}
"""Kernels without a cp.async, so without a wait. Those of explicit positions have the four warps of float32 and of wide
heads: under the warp or two that they have for others less would meet.
"""
KERNELS = COPYING | WITHOUT_COPIES
ADDING = {"every number of explicit positions": "a bias of explicit positions"}
"""The kernel that adds numbers, pair by pair."""
FEWEST = {"merge_kernel": 8}
"""Barriers that are found, at least, of those kernels that have few; of others 10."""
NOT_NEEDED = {"queries_kernel": 1, "keys_kernel": 1, "every gradient": 1, "mask_kernel": 1, "several_kernel": 1}
"""Waits behind a walk, after which nothing lies where the copies go."""
SLOW = {"every gradient of explicit positions", "rows_kernel", "mask_kernel", "several_kernel"}
BARRIER, WAIT = r"\bbar\.sync[^;]*;", r"\bcp\.async\.wait_group\s+(\d+);"
COPIED_TO = r"\bcp\.async\.c[ag]\.shared\.global\s+\[ (%r\d+) \+ 0 \]"
MASKS = {
    "of stores": r"@!?%p\d+ (?=st\.global)",
    "of loads and copies": r"@!?%p\d+ (?=ld\.global)|(?<=0x10), %r\d+|(?<=0x4), %r\d+",  # of copies: bytes given
    "of additions": r"@!?%p\d+ (?=(?:atom|red)\.)",
}
MET, NOT_BROUGHT = "with no barrier between", "a byte is used that cp.async has not brought yet"
OUTSIDE, UNKNOWN = "lie outside of what was handed over", "only barrier 0, of all threads, is modelled"
NEEDLESS = 1 / 3
"""Of the barriers that a kernel runs, at most: Triton puts one wherever it cannot tell."""


@pytest.fixture(scope="module")
def launched() -> Callable[[str], tuple]:
    """How a kernel was launched, by its name; each scene is played once."""
    return partial(_launched, cache(_launches))


def _launched(launches: Callable[[str], dict[str, tuple]], name: str) -> tuple:
    return launches((KERNELS | ADDING)[name])[name]


def _launches(scene: str) -> dict[str, tuple]:
    """All launches of a scene, forward and backward."""
    from relattn.backends.triton.kernels import backward
    from tests.triton.ptx import launch

    sizes, ordered, given = SCENES[scene]
    found: dict[str, tuple] = {}
    plain = launch.launch

    def noted(kernel: Any, arguments: tuple, *others: Any, **given: Any) -> None:
        name = kernel.__name__
        if name == "queries_kernel" and not ordered:
            names = {
                "explicit": "every gradient of explicit positions",
                "a bias of explicit positions": "every number of explicit positions",
            }
            name = names.get(scene, "every gradient")
        found[name] = (kernel, arguments, *others)
        plain(kernel, arguments, *others, **given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "launch", noted)
        patch.setattr(backward, "is_deterministic", lambda call, wanted: ordered)
        launch.emulate(sizes, patch)
        seeds.start_torch("mutants")
        call = make_call(torch.bfloat16, **given)
        run(call, *random_cotangents(call))
    return found


def each(names: Iterable[str]) -> list[Any]:
    """Those that take more than some seconds now and then."""
    return [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in names]


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


def stored_instead(number: int) -> Callable[[str], str]:
    """A store to where the last copy before a wait goes, in place of the wait."""

    def edit(ptx: str) -> str:
        wait = list(re.finditer(WAIT, ptx))[number]
        place = re.findall(COPIED_TO, ptx[: wait.start()])[-1]
        return ptx[: wait.start()] + f"st.shared.b32 [ {place} + 0 ], {place};" + ptx[wait.end() :]

    return edit


@pytest.mark.parametrize("name", each(KERNELS))
def test_a_barrier_taken_out_is_found(name: str, launched) -> None:
    """Each that the kernel runs, but for some that it does not need."""
    given = launched(name)
    count = len(re.findall(BARRIER, text_of(given)))
    silent = [number for number in range(count) if MET not in fault_of(given, without(BARRIER, number))]
    run = [number for number in silent if UNKNOWN in fault_of(given, without(BARRIER, number, "bar.sync 1;"))]
    found = count - len(silent)
    print(f"{name}: {count} barriers, {found} are found, {len(run)} are run and not found")
    assert found >= FEWEST.get(name, 10)
    assert len(run) <= NEEDLESS * (found + len(run))


@pytest.mark.parametrize("name", each(COPYING))
def test_a_wait_taken_out_is_found(name: str, launched) -> None:
    """Every one that a kernel needs; and of those in the walk along tiles, which leave some groups under way, with one
    more left. Behind a walk Triton waits for all copies, even if nothing is read or written there afterwards. If a
    store were there in place of such a wait, it would be found.
    """
    given = launched(name)
    waits = [int(groups) for groups in re.findall(WAIT, text_of(given))]
    assert max(waits) > 0, "a kernel in three stages copies beside its sums"
    silent = [number for number in range(len(waits)) if NOT_BROUGHT not in fault_of(given, without(WAIT, number))]
    print(f"{name}: waits {waits}, not found {silent}")
    assert len(silent) == NOT_NEEDED.get(name, 0)
    for number in silent:
        assert waits[number] == 0
        assert NOT_BROUGHT in fault_of(given, stored_instead(number))
    for number, groups in enumerate(waits):
        if groups:
            assert NOT_BROUGHT in fault_of(given, without(WAIT, number, f"cp.async.wait_group {groups + 1};"))


@pytest.mark.parametrize("name", each(WITHOUT_COPIES))
def test_a_kernel_without_copies_has_no_wait(name: str, launched) -> None:
    """So none can be taken out. With copies it would be one of the others."""
    text = text_of(launched(name))
    assert "cp.async" not in text
    assert not re.search(WAIT, text)


@pytest.mark.parametrize("name", each(KERNELS))
@pytest.mark.parametrize("masks", ["of stores", "of loads and copies"])
def test_masks_taken_out_are_found(masks: str, name: str, launched) -> None:
    """Without them a kernel leaves its tensors."""
    hold_to_its_masks(MASKS[masks], launched(name))


def test_masks_of_additions_taken_out_are_found(launched) -> None:
    """A pair without a row would be added before the first."""
    hold_to_its_masks(MASKS["of additions"], launched("every number of explicit positions"))


def test_bounds_of_additions_taken_out_are_found(launched) -> None:
    """What belongs to no row is added to the row before the first, or to the one after the last."""

    def without_bounds(ptx: str) -> str:
        bounded = set(re.findall(r"max\.s32\s+(%r\d+), %r\d+, -1;", ptx))
        assert bounded
        ptx = re.sub(r"max\.s32(\s+%r\d+, %r\d+), -1;", r"mov.b32\1;", ptx)
        return re.sub(
            r"min\.s32(\s+%r\d+, (%r\d+)), %r\d+;", lambda m: f"mov.b32{m[1]};" if m[2] in bounded else m[0], ptx
        )

    assert OUTSIDE in fault_of(launched("every gradient"), without_bounds)


def hold_to_its_masks(pattern: str, given: tuple) -> None:
    assert re.search(pattern, text_of(given))
    assert OUTSIDE in fault_of(given, lambda ptx: re.sub(pattern, "", ptx))
