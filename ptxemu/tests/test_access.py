"""Loads and stores, each instruction alone: what is read and written, and the addresses that are faults."""

import numpy as np
import pytest
import torch

from ptxemu.fault import Fault
from ptxemu.kinds import KINDS, unsigned
from ptxemu.tests.drawn import drawn, prefix
from ptxemu.tests.snippets import PROGRAMS, SHARED, THREADS, execute

SIZES = [(kind, count) for kind in ("b8", "b16", "b32", "b64") for count in (1, 2, 4) if (kind, count) != ("b64", 4)]
BEYOND = 16


def instruction(name: str, space: str, kind: str, count: int) -> str:
    return f"{name}.{space}.v{count}.{kind}" if count > 1 else f"{name}.{space}.{kind}"


def registers(kind: str, count: int) -> list[str]:
    return [f"{'%rs' if kind == 'b8' else prefix(kind)}{n}" for n in range(count)]


def listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{{ {', '.join(names)} }}"


@pytest.mark.parametrize(("kind", "count"), SIZES)
def test_loads_from_global_memory(kind: str, count: int, rng: np.random.Generator) -> None:
    """Each thread from a place of its own, some bytes beyond the address; the others' registers stay."""
    bits, names = unsigned(KINDS[kind].itemsize), registers(kind, count)
    memory = rng.integers(0, 256, PROGRAMS * THREADS * 16 + BEYOND, dtype=np.uint8)
    place = rng.permutation(PROGRAMS * THREADS).reshape(PROGRAMS, THREADS)
    takes = drawn("pred", rng)
    before = dict.fromkeys(names, np.array(7, np.uint16 if kind == "b8" else bits))
    found = execute(
        f"ld.param.b64 %rd5, [snippet_param_0]; add.s64 %rd6, %rd5, %rd7;"
        f"@%p1 {instruction('ld', 'global', kind, count)} {listed(names)}, [ %rd6 + {BEYOND} ];",
        {"%rd7": np.int64(place * bits.itemsize * count), "%p1": takes, **before},
        torch.from_numpy(memory),
    )
    expected = memory[BEYOND:].view(bits)[place[..., None] * count + np.arange(count)]
    for n, name in enumerate(names):
        np.testing.assert_array_equal(found[name], np.where(takes, expected[..., n], 7))


@pytest.mark.parametrize(("kind", "count"), SIZES)
def test_stores_to_global_memory(kind: str, count: int, rng: np.random.Generator) -> None:
    """Where no thread writes, nothing changes."""
    bits, names = unsigned(KINDS[kind].itemsize), registers(kind, count)
    given = {name: drawn("b16" if kind == "b8" else kind, rng) for name in names}
    place = rng.permutation(PROGRAMS * THREADS).reshape(PROGRAMS, THREADS)
    takes = drawn("pred", rng)
    memory = torch.full((PROGRAMS * THREADS * bits.itemsize * count,), 99, dtype=torch.uint8)
    expected = memory.numpy().copy().view(bits).reshape(-1, count)
    execute(
        f"ld.param.b64 %rd5, [snippet_param_0]; add.s64 %rd6, %rd5, %rd7;"
        f"@%p1 {instruction('st', 'global', kind, count)} [%rd6], {listed(names)};",
        {"%rd7": np.int64(place * bits.itemsize * count), "%p1": takes, **given},
        memory,
    )
    expected[place[takes]] = np.stack([values[takes].astype(bits) for values in given.values()], -1)
    np.testing.assert_array_equal(memory.numpy().view(bits).reshape(-1, count), expected)


@pytest.mark.parametrize(("kind", "count"), SIZES)
def test_shared_memory(kind: str, count: int, rng: np.random.Generator) -> None:
    """What each thread has written, another one of the program reads after a barrier; every program has its own."""
    bits, names = unsigned(KINDS[kind].itemsize), registers(kind, count)
    size = bits.itemsize * count
    given = {name: drawn("b16" if kind == "b8" else kind, rng) for name in names}
    place, reader = (np.stack([rng.permutation(THREADS) for _ in range(PROGRAMS)]) for _ in range(2))
    found = execute(
        f"{instruction('st', 'shared', kind, count)} [ %r5 + {BEYOND} ], {listed(names)}; bar.sync 0;"
        f"{instruction('ld', 'shared', kind, count)} {listed(names)}, [%r6+{BEYOND}];",
        {"%r5": np.int32(place * size), "%r6": np.int32(np.take_along_axis(place, reader, 1) * size), **given},
    )
    for name, values in given.items():
        np.testing.assert_array_equal(found[name], np.take_along_axis(values.astype(bits), reader, 1))


def test_shared_memory_by_its_name() -> None:
    stored = "st.shared::cta.b32 [global_smem+8], 5; bar.sync 0;"  # as Triton 3.9 writes what 3.8 writes st.shared
    found = execute(f"{stored} ld.shared.b32 %r1, [global_smem+8];", {})
    assert (found["%r1"] == 5).all()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "ld.global.b32 %r1, [%rd1+400]",
            "4 bytes at global address 0x10000000190 lie outside of what was handed over",
        ),
        ("st.global.b32 [%rd1+-4], %r2", "4 bytes at global address 0xfffffffffc lie outside of what was handed over"),
        ("ld.global.v4.b32 {%r3, %r4, %r5, %r6}, [%rd1+396]", "global address 0x1000000018c is no multiple of 16"),
        ("ld.global.b64 %rd2, [%rd1+396]", "global address 0x1000000018c is no multiple of 8"),
        ("ld.shared.b32 %r1, [global_smem+2048]", f"shared address 2048 lies outside of {SHARED} bytes"),
        ("st.shared.b16 [global_smem+-2], 5", f"shared address -2 lies outside of {SHARED} bytes"),
        ("ld.shared.b32 %r1, [global_smem+6]", "shared address 6 is no multiple of 4"),
        ("st.shared.b32 [global_smem], %r7", "two warps write different bits to one place at once"),
    ],
)
def test_wrong_addresses_are_faults(text: str, sentence: str) -> None:
    """A tensor of 100 numbers of 4 bytes, the first at 0x10000000000."""
    with pytest.raises(Fault) as fault:
        execute(
            f"ld.param.b64 %rd1, [snippet_param_0]; {text};",
            {"%r2": np.uint32(1), "%r7": np.arange(THREADS, dtype=np.uint32)},
            torch.zeros(100),
        )
    assert str(fault.value) == f"{sentence}: `{text}`, in programs 0, 1, 2"


TESTED = {
    instruction(name, space, kind, count) for name in ("ld", "st") for space in ("global", "shared")
    for kind, count in SIZES
}  # fmt: skip
