"""Atomic additions alone: every thread's number arrives, once, and only those of threads that take part."""

import numpy as np
import pytest
import torch

from ptxemu.fault import Fault
from ptxemu.tests.drawn import drawn
from ptxemu.tests.snippets import PROGRAMS, THREADS, execute

PLACES = 7
ADD = "atom.global.gpu.relaxed.add"
REDUCE = "red.global.gpu.relaxed.add"
"""The same, as Triton 3.9 writes it: nobody asks what stood there."""


def test_all_that_is_added_to_a_place_arrives(rng: np.random.Generator) -> None:
    """By many threads of many programs at once; what stood there stays."""
    place = rng.integers(0, PLACES, (PROGRAMS, THREADS))
    numbers = rng.integers(-99, 99, (PROGRAMS, THREADS)).astype(np.float32)  # their sums are exact in any order
    takes, before = drawn("pred", rng), rng.integers(-9, 9, PLACES).astype(np.float32)
    memory = torch.from_numpy(before.copy())
    found = execute(
        "ld.param.b64 %rd5, [snippet_param_0]; add.s64 %rd6, %rd5, %rd7;"
        "@%p1 atom.global.gpu.relaxed.add.f32 %r1, [ %rd6 + 0 ], %r2;",
        {"%rd7": np.int64(place * 4), "%p1": takes, "%r1": np.float32(7), "%r2": numbers},
        memory,
    )
    expected = [before[n] + numbers[takes & (place == n)].sum() for n in range(PLACES)]
    assert memory.tolist() == expected
    old = found["%r1"].view(np.float32)
    assert np.isnan(old[takes]).all(), "no kernel may rely on it"
    assert (old[~takes] == 7).all()


@pytest.mark.parametrize("count", [2, 4])
def test_numbers_side_by_side(count: int, rng: np.random.Generator) -> None:
    """From multiples of all their bytes on."""
    place, numbers = rng.integers(0, PLACES, (PROGRAMS, THREADS)), rng.integers(-99, 99, (count, PROGRAMS, THREADS))
    old, new = (", ".join(f"%r{first + n}" for n in range(count)) for first in (10, 20))
    given = {f"%r{20 + n}": numbers[n].astype(np.float32) for n in range(count)}
    addition = f"{ADD}.v{count}.f32 {{ {old} }}, [ %rd6 + 0 ], {{ {new} }};"
    start, memory = "ld.param.b64 %rd5, [snippet_param_0]; add.s64 %rd6, %rd5, %rd7;", torch.zeros(count * PLACES)
    execute(start + addition, {"%rd7": np.int64(place * 4 * count), **given}, memory)
    assert memory.tolist() == [numbers[n][place == at].sum() for at in range(PLACES) for n in range(count)]
    reduction = f"{REDUCE}.v{count}.f32 [ %rd6 + 0 ], {{ {new} }};"
    execute(start + reduction, {"%rd7": np.int64(place * 4 * count), **given}, memory)
    assert memory.tolist() == [2 * numbers[n][place == at].sum() for at in range(PLACES) for n in range(count)]
    with pytest.raises(Fault, match=f"global address 0x10000000004 is no multiple of {4 * count}"):
        execute(start + addition, {"%rd7": np.int64(4), **given}, memory)


def test_an_address_outside_is_a_fault() -> None:
    with pytest.raises(Fault, match="4 bytes at global address 0x10000000010 lie outside of what was handed over"):
        execute(
            "ld.param.b64 %rd1, [snippet_param_0]; atom.global.gpu.relaxed.add.f32 %r1, [%rd1+16], %r2;",
            {"%r2": np.float32(1)},
            torch.zeros(4),
        )


def test_a_single_number_that_nobody_asks_back() -> None:
    memory = torch.zeros(1)
    execute(f"ld.param.b64 %rd1, [snippet_param_0]; {REDUCE}.f32 [ %rd1 + 0 ], %r2;", {"%r2": np.float32(1)}, memory)
    assert memory.item() == PROGRAMS * THREADS


TESTED = {f"{name}{vector}.f32" for name in (ADD, REDUCE) for vector in ("", ".v2", ".v4")}
