"""ldmatrix, stmatrix and mma, each alone: fragments as the PTX manual draws them, products against NumPy's."""

import numpy as np
import pytest
import torch

from ptxemu.tests.snippets import PROGRAMS, THREADS, execute

WARPS = THREADS // 32
KINDS = {"bf16": torch.bfloat16, "f16": torch.float16, "tf32": torch.float32}
REGISTERS = [f"%r{n}" for n in range(10, 14)]


@pytest.mark.parametrize("trans", ["", ".trans"])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_rows_of_eight(count: int, trans: str, rng: np.random.Generator) -> None:
    """Thread t gets elements (t // 4, 2 (t % 4)) and the one to its right of each matrix, or of its transpose."""
    matrices = rng.integers(0, 2**16, (count, 8, 8), dtype=np.uint16)
    at = rng.permutation(8 * count)  # where each row lies
    rows = np.empty((8 * count, 8), np.uint16)
    rows[at] = matrices.reshape(-1, 8)
    words = np.zeros((32, 4), np.uint32)
    words[: 8 * count] = rows.view(np.uint32)
    lane = np.arange(THREADS) % 32
    address = np.where(lane < 8 * count, at[lane % (8 * count)] * 16, 10**6)  # of others nobody asks
    targets = REGISTERS[:count]
    found = execute(
        "st.shared.v4.b32 [%r1], {%r2, %r3, %r4, %r5}; bar.sync 0;"
        f"ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {{{', '.join(targets)}}}, [%r6];",
        {
            "%r1": np.uint32(lane * 16),
            **{f"%r{2 + n}": words[lane, n] for n in range(4)},
            "%r6": address.astype(np.uint32),
        },
    )
    for n, name in enumerate(targets):
        matrix = matrices[n].T if trans else matrices[n]
        for thread in range(THREADS):
            row, column = thread % 32 // 4, 2 * (thread % 4)
            expected = int(matrix[row, column]) | int(matrix[row, column + 1]) << 16
            assert (found[name][:, thread] == expected).all()


@pytest.mark.parametrize("trans", ["", ".trans"])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_rows_of_eight_are_stored(count: int, trans: str, rng: np.random.Generator) -> None:
    """Each goes where the thread of its row says; read again by threads that lie otherwise."""
    words = rng.integers(0, 2**32, (32, count), dtype=np.uint32)
    at = rng.permutation(8 * count)
    lane = np.arange(THREADS) % 32
    address = np.where(lane < 8 * count, at[lane % (8 * count)] * 16, 10**6)
    sources = ", ".join(f"%r{20 + n}" for n in range(count))
    found = execute(
        f"stmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 [%r1], {{{sources}}}; bar.sync 0;"
        f"ld.shared.v4.b32 {{{', '.join(REGISTERS)}}}, [%r2];",
        {
            "%r1": address.astype(np.uint32),
            "%r2": np.uint32(lane % (8 * count) * 16),
            **{f"%r{20 + n}": words[lane, n] for n in range(count)},
        },
    )
    rows = np.stack([found[name][0, :32] for name in REGISTERS], 1)  # each as four pairs
    matrices = rows.view(np.uint16)[at].reshape(count, 8, 8)
    held = words.T.copy().view(np.uint16).reshape(count, 8, 8)  # thread by thread: row t // 4, a pair of columns
    assert (matrices == (held.swapaxes(1, 2) if trans else held)).all()


def bits_of(numbers: list[float], kind: str) -> int:
    """Of the register that holds one number, or two."""
    return int.from_bytes(torch.tensor(numbers).to(KINDS[kind]).view(torch.uint8).numpy().tobytes(), "little")


@pytest.mark.parametrize("kind", KINDS)
def test_products(kind: str, rng: np.random.Generator) -> None:
    """Of small integers, so that every sum is exact; each warp of each program has its own."""
    each = 1 if kind == "tf32" else 2  # numbers of a register
    k = 8 * each
    given = {f"%r{n}": np.zeros((PROGRAMS, THREADS), np.uint32) for n in range(10)}
    expected = np.zeros((4, PROGRAMS, THREADS))
    for program in range(PROGRAMS):
        for warp in range(WARPS):
            a, b, c = (rng.integers(-9, 10, shape).astype(float) for shape in ((16, k), (k, 8), (16, 8)))
            product = a @ b + c
            for lane in range(32):
                group, quarter, thread = lane // 4, lane % 4, 32 * warp + lane
                for n in range(4):  # upper left, lower left, upper right, lower right
                    first = each * quarter + (4 * each if n >= 2 else 0)
                    numbers = a[group + (8 if n % 2 else 0), first : first + each]
                    given[f"%r{n}"][program, thread] = bits_of(numbers.tolist(), kind)
                for n in range(2):  # upper, lower
                    first = each * quarter + 4 * each * n
                    given[f"%r{4 + n}"][program, thread] = bits_of(b[first : first + each, group].tolist(), kind)
                for n in range(4):  # two above, two below
                    place = group + (8 if n >= 2 else 0), 2 * quarter + n % 2
                    given[f"%r{6 + n}"][program, thread] = np.float32(c[place]).view(np.uint32)
                    expected[n, program, thread] = product[place]
    found = execute(
        f"mma.sync.aligned.m16n8k{k}.row.col.f32.{kind}.{kind}.f32 {{ {', '.join(REGISTERS)} }},"
        "{ %r0, %r1, %r2, %r3 }, { %r4, %r5 }, { %r6, %r7, %r8, %r9 };",
        given,
    )
    for n, name in enumerate(REGISTERS):
        np.testing.assert_array_equal(found[name].view(np.float32), expected[n])


def test_what_a_tensor_core_does_not_see_of_float32() -> None:
    """All but 10 binary places."""
    one = {f"%r{n}": np.float32(1 + 2.0**-11) for n in range(6)} | {f"%r{n}": np.float32(0) for n in range(6, 10)}
    found = execute(
        f"mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {{ {', '.join(REGISTERS)} }},"
        "{ %r0, %r1, %r2, %r3 }, { %r4, %r5 }, { %r6, %r7, %r8, %r9 };",
        one,
    )
    assert all((found[name].view(np.float32) == 8.0).all() for name in REGISTERS)


TESTED = {
    *(
        f"{name}.sync.aligned.m8n8.x{count}{trans}.shared.b16"
        for name in ("ldmatrix", "stmatrix")
        for count in (1, 2, 4)
        for trans in ("", ".trans")
    ),
    *(
        f"mma.sync.aligned.m16n8k{k}.row.col.f32.{kind}.{kind}.f32"
        for kind, k in {"bf16": 16, "f16": 16, "tf32": 8}.items()
    ),
}
