"""ldmatrix and mma, each alone: fragments as the PTX manual draws them, products against NumPy's."""

import numpy as np
import pytest
import torch

from tests.triton.ptx.snippets import PROGRAMS, THREADS, execute

WARPS = THREADS // 32
HALVES = {"bf16": torch.bfloat16, "f16": torch.float16}
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


def halves(matrix: np.ndarray, row: int, column: int, step: tuple[int, int], kind: str) -> int:
    """Two elements side by side, or below each other, as the bits of one register."""
    low, high = matrix[row, column], matrix[row + step[0], column + step[1]]
    bits = torch.tensor([low, high]).to(HALVES[kind]).view(torch.int16).numpy().view(np.uint16)
    return int(bits[0]) | int(bits[1]) << 16


@pytest.mark.parametrize("kind", HALVES)
def test_products(kind: str, rng: np.random.Generator) -> None:
    """Of small integers, so that every sum is exact; each warp of each program has its own."""
    given = {name: np.zeros((PROGRAMS, THREADS), np.uint32) for name in [f"%r{n}" for n in range(10)]}
    expected = np.zeros((4, PROGRAMS, THREADS))
    for program in range(PROGRAMS):
        for warp in range(WARPS):
            a, b, c = (rng.integers(-9, 10, shape).astype(float) for shape in ((16, 16), (16, 8), (16, 8)))
            product = a @ b + c
            for lane in range(32):
                group, pair, thread = lane // 4, 2 * (lane % 4), 32 * warp + lane
                corners = [(group, pair), (group + 8, pair), (group, pair + 8), (group + 8, pair + 8)]
                for n, (row, column) in enumerate(corners):
                    given[f"%r{n}"][program, thread] = halves(a, row, column, (0, 1), kind)
                for n in range(2):
                    given[f"%r{4 + n}"][program, thread] = halves(b, pair + 8 * n, group, (1, 0), kind)
                places = [(group, pair), (group, pair + 1), (group + 8, pair), (group + 8, pair + 1)]
                for n, place in enumerate(places):
                    given[f"%r{6 + n}"][program, thread] = np.float32(c[place]).view(np.uint32)
                    expected[n, program, thread] = product[place]
    found = execute(
        f"mma.sync.aligned.m16n8k16.row.col.f32.{kind}.{kind}.f32 {{ {', '.join(REGISTERS)} }},"
        "{ %r0, %r1, %r2, %r3 }, { %r4, %r5 }, { %r6, %r7, %r8, %r9 };",
        given,
    )
    for n, name in enumerate(REGISTERS):
        np.testing.assert_array_equal(found[name].view(np.float32), expected[n])


TESTED = {
    *(f"ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16" for count in (1, 2, 4) for trans in ("", ".trans")),
    *(f"mma.sync.aligned.m16n8k16.row.col.f32.{kind}.{kind}.f32" for kind in HALVES),
}
