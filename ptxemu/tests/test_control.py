"""Branches, barriers and the end."""

import numpy as np
import pytest

from ptxemu.fault import Fault
from ptxemu.tests.snippets import PROGRAMS, THREADS, execute

LOOP = """
    mov.u32 %r1, 0;
$again:
    add.s32 %r1, %r1, 1;
    setp.lt.s32 %p1, %r1, %r2;
    @%p1 bra $again;
    @!%p2 bra $there;
    add.s32 %r1, %r1, 100;
    bra.uni $end;
$there:
    add.s32 %r1, %r1, 1000;
$end:
"""


def test_every_program_goes_its_own_way() -> None:
    turns, second = np.array([3, 1, 5], np.int32)[:, None], np.array([True, False, True])[:, None]
    found = execute(LOOP, {"%r2": turns, "%p2": second})["%r1"]
    expected = turns + np.where(second, 100, 1000)
    np.testing.assert_array_equal(found, np.broadcast_to(expected, (PROGRAMS, THREADS)))


def test_threads_of_one_program_must_not_part() -> None:
    with pytest.raises(Fault, match="threads of one program take a branch two ways: `@%p1 bra"):
        execute("@%p1 bra $end; \n$end:\n", {"%p1": np.arange(THREADS) < 32})


def test_nobody_goes() -> None:
    assert (execute("@%p1 bra $end; mov.u32 %r1, 7; \n$end:\n", {"%p1": np.array(False)})["%r1"] == 7).all()


def test_a_barrier_is_for_all() -> None:
    with pytest.raises(Fault, match="only barrier 0, of all threads, is modelled"):
        execute("bar.sync 1, 32;", {})
    with pytest.raises(Fault, match="some threads do not take part"):
        execute("@%p1 bar.sync 0;", {"%p1": np.arange(THREADS) < 32})


def test_a_barrier_of_a_warp_is_for_all_of_it() -> None:
    assert (execute("bar.warp.sync -1; mov.u32 %r1, 7;", {})["%r1"] == 7).all()
    with pytest.raises(Fault, match="only a barrier of whole warps is modelled"):
        execute("bar.warp.sync 1;", {})
    with pytest.raises(Fault, match="some threads do not take part"):
        execute("@%p1 bar.warp.sync -1;", {"%p1": np.arange(THREADS) < 16})


def test_the_end_is_the_end() -> None:
    assert "%r1" not in execute("ret; mov.u32 %r1, 7;", {})


def test_a_fence_changes_nothing() -> None:
    assert (execute("mov.u32 %r1, 7; fence.proxy.async.shared::cta;", {})["%r1"] == 7).all()


TESTED = {"bra", "bra.uni", "bar.sync", "bar.warp.sync", "fence.proxy.async.shared::cta", "ret"}
