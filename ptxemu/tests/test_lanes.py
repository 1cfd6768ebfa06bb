"""Shuffles, and the largest and the smallest number of a warp, each instruction alone."""

import numpy as np
import pytest

from ptxemu.fault import Fault
from ptxemu.tests.drawn import drawn
from ptxemu.tests.snippets import PROGRAMS, THREADS, execute

LANES = np.arange(THREADS)


@pytest.mark.parametrize("by", [1, 2, 4, 8, 16])
def test_partners(by: int, rng: np.random.Generator) -> None:
    """Thread t and thread t ^ by change places."""
    given = drawn("u32", rng)
    found = execute(f"shfl.sync.bfly.b32 %r2, %r1, {by}, 31, -1;", {"%r1": given})["%r2"]
    np.testing.assert_array_equal(found, given[:, LANES ^ by])


def test_any_thread_of_the_warp(rng: np.random.Generator) -> None:
    """Each names its own, by five bits; the other warp is out of reach."""
    given, by = drawn("u32", rng), rng.integers(0, 100, (PROGRAMS, THREADS), dtype=np.uint32)
    found = execute("shfl.sync.idx.b32 %r2, %r1, %r3, 31, -1;", {"%r1": given, "%r3": by})["%r2"]
    np.testing.assert_array_equal(found, np.take_along_axis(given, LANES // 32 * 32 + by % 32, 1))


@pytest.mark.parametrize(("name", "sign"), [("max", 1), ("min", -1)])
def test_the_largest_and_the_smallest_of_a_warp(name: str, sign: int, rng: np.random.Generator) -> None:
    """Signed: the largest of negative numbers is the one next to 0. The other warp is out of reach."""
    given = drawn("s32", rng)
    given[0] = -sign * np.abs(given[0] % 1000) - sign * 5
    found = execute(f"redux.sync.{name}.s32 %r2, %r1, %r3;", {"%r1": given, "%r3": np.int32(-1)})["%r2"]
    of_warps = [[given[program, lane // 32 * 32 :][:32] for lane in LANES] for program in range(PROGRAMS)]
    expected = [[sign * max(sign * each for each in numbers.tolist()) for numbers in row] for row in of_warps]
    np.testing.assert_array_equal(found.view(np.int32), expected)


@pytest.mark.parametrize(
    ("guard", "mask", "sentence"),
    [
        ("", 255, "a largest or smallest number of a part of a warp is not modelled"),
        ("@%p1 ", -1, "some threads do not take part"),
    ],
)
def test_the_largest_of_a_part_of_a_warp_is_a_fault(guard: str, mask: int, sentence: str) -> None:
    with pytest.raises(Fault, match=sentence):
        execute(
            f"{guard}redux.sync.max.s32 %r2, %r1, %r3;",
            {"%r1": np.int32(1), "%r3": np.int32(mask), "%p1": LANES != 5},
        )


@pytest.mark.parametrize("ending", ["15, -1", "31, 255"])
def test_parts_of_a_warp_are_faults(ending: str) -> None:
    with pytest.raises(Fault, match="shuffles within a part of a warp are not modelled"):
        execute(f"shfl.sync.bfly.b32 %r2, %r1, 1, {ending};", {"%r1": np.uint32(1)})


def test_a_thread_that_stays_away_is_a_fault() -> None:
    with pytest.raises(Fault, match="some threads do not take part in what their whole warp has to do"):
        execute("@%p1 shfl.sync.bfly.b32 %r2, %r1, 1, 31, -1;", {"%r1": np.uint32(1), "%p1": LANES != 5})


TESTED = {"shfl.sync.bfly.b32", "shfl.sync.idx.b32", "redux.sync.max.s32", "redux.sync.min.s32"}
