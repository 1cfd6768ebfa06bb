"""cp.async: what lands where, and that nobody uses it before it has."""

import numpy as np
import pytest
import torch
from numpy.typing import ArrayLike

from ptxemu.fault import Fault
from ptxemu.tests.snippets import PROGRAMS, THREADS, execute

ALL = np.arange(THREADS, dtype=np.uint32)
ADDRESS = "ld.param.b64 %rd1, [snippet_param_0]; add.s64 %rd2, %rd1, %rd3;"
BEGIN = "cp.async.{}.shared.global [ %r1 + 0 ], [ %rd2 + 0 ], {}, %r2;"
COMMIT, BARRIER = "cp.async.commit_group ;", "bar.sync 0;"
READ = "ld.shared.b32 %r3, [%r4];"


def given(size: int) -> dict[str, ArrayLike]:
    """Thread t copies bytes t * size and on; the first four are read by the thread 32 before or after."""
    return {
        "%r1": ALL * np.uint32(size),
        "%r2": np.uint32(size),
        "%rd3": ALL.astype(np.int64) * size,
        "%r4": (ALL + 32) % THREADS * np.uint32(size),
    }


def wait(number: int) -> str:
    return f"cp.async.wait_group {number};"


@pytest.mark.parametrize(("name", "size"), [("ca", 4), ("ca", 8), ("cg", 16)])
def test_copies_land(name: str, size: int, rng: np.random.Generator) -> None:
    memory = rng.integers(0, 256, THREADS * size, dtype=np.uint8)
    text = ADDRESS + BEGIN.format(name, hex(size)) + COMMIT + wait(0) + BARRIER + READ
    found = execute(text, given(size), torch.from_numpy(memory))["%r3"]
    expected = memory.reshape(THREADS, size)[(ALL + 32) % THREADS, :4].copy().view(np.uint32)[:, 0]
    np.testing.assert_array_equal(found, np.broadcast_to(expected, (PROGRAMS, THREADS)))


def test_what_is_not_given_is_zero(rng: np.random.Generator) -> None:
    """Nor is it read: the tensor ends where the threads' bytes do."""
    memory = rng.integers(1, 256, 16 * 20 + 6, dtype=np.uint8)
    count = np.clip(len(memory) - 16 * ALL.astype(np.int64), 0, 16)
    text = ADDRESS + BEGIN.format("cg", "0x10") + COMMIT + wait(0) + "ld.shared.v4.b32 {%r5, %r6, %r7, %r8}, [%r1];"
    found = execute(text, {**given(16), "%r2": count.astype(np.uint32)}, torch.from_numpy(memory))
    padded = np.zeros(16 * THREADS, np.uint8)
    padded[: len(memory)] = memory
    for n in range(4):
        expected = padded.view(np.uint32).reshape(THREADS, 4)[:, n]
        np.testing.assert_array_equal(found[f"%r{5 + n}"], np.broadcast_to(expected, (PROGRAMS, THREADS)))


TWO = ADDRESS + BEGIN.format("ca", 4) + COMMIT + "add.s32 %r1, %r1, 256;" + BEGIN.format("ca", 4) + COMMIT
LATER = "ld.shared.b32 %r3, [%r4+256];"


@pytest.mark.parametrize("text", [
    TWO + wait(1) + BARRIER + READ,
    TWO + wait(0) + BARRIER + READ + LATER,
    TWO + wait(1) + BARRIER + READ + wait(0) + BARRIER + LATER,
])  # fmt: skip
def test_groups_land_in_their_order(text: str) -> None:
    execute(text, given(4), torch.zeros(THREADS))


NOT_BROUGHT = r"a byte is used that cp.async has not brought yet: `ld.shared.b32"
NO_BARRIER = "`cp.async.ca.shared.global .*` and warp 0, `ld.shared.b32 .*` meet at byte 128 .* no barrier"
FAULTS = {
    "nobody waits": (TWO + BARRIER + READ, NOT_BROUGHT),
    "nobody waits for the second": (TWO + wait(1) + BARRIER + LATER, NOT_BROUGHT),
    "no group": (ADDRESS + BEGIN.format("ca", 4) + wait(0) + BARRIER + READ, NOT_BROUGHT),
    "each waits for its own alone": (
        TWO + wait(0) + READ,
        NO_BARRIER.replace("` and", "`, and").replace("` meet", "`, meet"),
    ),
    "others still read": (READ + TWO + wait(0), "no barrier between"),
    "a store in between": (TWO + BARRIER + "st.shared.b32 [%r1], 5;", "cp.async has not brought yet"),
    "a copy in between": (TWO + BARRIER + BEGIN.format("ca", 4), "cp.async has not brought yet"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_what_comes_too_early_is_a_fault(name: str) -> None:
    text, sentence = FAULTS[name]
    with pytest.raises(Fault, match=sentence):
        execute(text, given(4), torch.zeros(THREADS))


def test_programs_that_part_have_their_own_copies() -> None:
    """Two wait at once, and one in a branch; where it does not wait, it is not helped by the others."""
    text = (
        TWO
        + "@%p1 bra $there;"
        + wait(0)
        + BARRIER
        + READ
        + "bra.uni $end;\n$there:\n{}"
        + BARRIER
        + LATER
        + "\n$end:\n"
    )
    given_to_one = {**given(4), "%p1": np.arange(PROGRAMS)[:, None] == 1}
    memory = torch.arange(THREADS, dtype=torch.int32)
    found = execute(text.format(wait(0)), given_to_one, memory)["%r3"]
    np.testing.assert_array_equal(found, np.broadcast_to((ALL + 32) % THREADS, (PROGRAMS, THREADS)))
    with pytest.raises(Fault, match=NOT_BROUGHT + r".*, in programs 1$"):
        execute(text.format(""), given_to_one, memory)


def test_more_bytes_than_the_copy_has_are_a_fault() -> None:
    with pytest.raises(Fault, match="8 bytes are given, for a copy of 4"):
        execute(ADDRESS + BEGIN.format("ca", 4), {**given(4), "%r2": np.uint32(8)}, torch.zeros(THREADS))


TESTED = {f"cp.async.{name}" for name in ("ca.shared.global", "cg.shared.global", "commit_group", "wait_group")}
