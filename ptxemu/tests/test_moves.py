"""Copies of numbers, parts joined and taken apart, and arguments, each instruction alone."""

import numpy as np
import pytest

from ptxemu.fault import Fault
from ptxemu.kinds import from_bfloat16
from ptxemu.tests.drawn import drawn, hold_to, prefix
from ptxemu.tests.snippets import PROGRAMS, THREADS, execute

COPIED = ("b16", "b32", "b64", "u16", "u32", "u64", "pred")


@pytest.mark.parametrize("kind", COPIED)
def test_a_copy(kind: str, rng: np.random.Generator) -> None:
    hold_to(f"mov.{kind}", lambda a: a, kind, (kind,), rng)


@pytest.mark.parametrize(("whole", "part"), [("b32", "u16"), ("b64", "u32"), ("b64", "u16")])
def test_parts_joined_and_taken_apart(whole: str, part: str, rng: np.random.Generator) -> None:
    """The first is the lowest."""
    count = int(whole[1:]) // int(part[1:])
    given = {f"{prefix(part)}{n}": drawn(part, rng) for n in range(count)}
    register, names = f"{prefix(whole)}8", ", ".join(given)
    joined = execute(f"mov.{whole} {register}, {{{names}}};", given)[register]
    np.testing.assert_array_equal(joined, np.stack(list(given.values()), -1).view(joined.dtype)[..., 0])
    apart = execute(f"mov.{whole} {{{names}}}, {register};", {register: joined})
    for name, values in given.items():
        np.testing.assert_array_equal(apart[name], values)


def test_a_part_that_nobody_wants(rng: np.random.Generator) -> None:
    given = drawn("u32", rng)
    found = execute("mov.b32 {_, %rs1}, %r1;", {"%r1": given})
    np.testing.assert_array_equal(found["%rs1"], given >> 16)


def test_a_part_that_nothing_wrote(rng: np.random.Generator) -> None:
    """The other parts stay; what is taken for it is a number far from all others."""
    given = drawn("u16", rng)
    found = execute("mov.b32 %r1, {%rs1, %rs2}; mov.b32 {%rs3, %rs4}, %r1;", {"%rs1": given})
    np.testing.assert_array_equal(found["%rs3"], given)
    assert (found["%rs4"] == 0xDBDB).all()
    assert np.abs(from_bfloat16(found["%rs4"])).min() > 1e17


@pytest.mark.parametrize(
    ("text", "expected"),
    [("mov.b32 %r1, -7", 2**32 - 7), ("mov.b32 %r1, 0f3F800000", 0x3F800000), ("mov.u32 %r1, 0x1F", 31)],
)
def test_numbers_in_the_text(text: str, expected: int) -> None:
    np.testing.assert_array_equal(execute(f"{text};", {})["%r1"], np.full((PROGRAMS, THREADS), expected))


def test_what_the_hardware_fills() -> None:
    threads, programs = np.arange(THREADS), np.arange(PROGRAMS)[:, None]
    for name, values in {"tid.x": threads, "ctaid.x": programs, "nctaid.x": PROGRAMS}.items():
        found = execute(f"mov.u32 %r1, %{name};", {})["%r1"]
        np.testing.assert_array_equal(found, np.broadcast_to(values, (PROGRAMS, THREADS)))


def test_arguments() -> None:
    """A signed one keeps its sign in a wider register."""
    loaded = {"b32 %r1": 2**32 - 5, "s32 %rd1": 2**64 - 5, "b64 %rd1": 2**32 - 5}
    for target, expected in loaded.items():
        found = execute(f"ld.param.{target}, [snippet_param_1];", {}, argument=2**32 - 5)[target.split()[1]]
        np.testing.assert_array_equal(found, np.full((PROGRAMS, THREADS), expected, np.uint64))


def test_a_register_that_nothing_wrote_is_a_fault() -> None:
    with pytest.raises(Fault) as fault:
        execute("mov.u32 %r1, %r2;", {})
    assert str(fault.value).startswith("%r2 is read and was never written: `mov.u32 %r1, %r2`")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("mov.b64 %r1, 5", "%r1 has 32 bits and is written as b64"),
        ("mov.b64 %rd1, %r2", "%r2 has 32 bits and is read as b64"),
    ],
)
def test_a_register_that_is_too_narrow_is_a_fault(text: str, sentence: str) -> None:
    with pytest.raises(Fault, match=sentence):
        execute(f"{text};", {"%r2": np.uint32(1)})


def test_only_threads_that_take_part_are_changed(rng: np.random.Generator) -> None:
    holds, given = drawn("pred", rng), drawn("u32", rng)
    registers = {"%p1": holds, "%r1": given, "%r2": np.uint32(7), "%r3": np.uint32(7)}
    found = execute("@%p1 mov.u32 %r2, %r1; @!%p1 mov.u32 %r3, %r1;", registers)
    np.testing.assert_array_equal(found["%r2"], np.where(holds, given, 7))
    np.testing.assert_array_equal(found["%r3"], np.where(holds, 7, given))


TESTED = {*(f"mov.{kind}" for kind in COPIED), *(f"ld.param.{kind}" for kind in ("b32", "b64", "s32"))}
