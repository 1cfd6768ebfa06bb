"""ldmatrix, stmatrix, and the products of the tensor cores: the PTX manual's chapter on mma draws who holds what.

Thread t of a warp holds neighbouring elements of row t // 4, in columns 2 (t % 4) and the next one.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ptxemu.access import accessed
from ptxemu.kinds import from_bfloat16, truncated_to_tf32
from ptxemu.operands import Group, Operand
from ptxemu.program import Step
from ptxemu.shared import Access
from ptxemu.threads import WARP, Threads

ROW, COLUMN = np.arange(WARP) // 4, 2 * (np.arange(WARP) % 4)


def load_matrices(count: int, transposed: bool) -> Step:
    """`count` matrices of 8 rows of 8 times 16 bits; thread t says where row t % 8 of matrix t // 8 lies."""

    def step(threads: Threads, operands: tuple[Operand, ...]) -> None:
        targets, address = operands
        assert isinstance(targets, Group)
        access = _rows(threads, address, count)
        found = threads.launch.shared.load(threads.epoch, access, 2).reshape(len(threads.programs), -1, count, 8, 8)
        if transposed:
            found = found.swapaxes(3, 4)
        pairs = np.ascontiguousarray(found).view(np.uint32)  # [programs, warps, matrices, rows, 4]
        for n, register in enumerate(targets.parts):
            threads.write(register, pairs[:, :, n].reshape(threads.shape), "b32")

    return step


def store_matrices(count: int, transposed: bool) -> Step:
    """The inverse of `load_matrices`."""

    def step(threads: Threads, operands: tuple[Operand, ...]) -> None:
        address, sources = operands
        access = _rows(threads, address, count)
        held = np.ascontiguousarray(
            _registers(threads, sources, "b32").swapaxes(2, 3)
        )  # [programs, warps, matrices, 32]
        matrices = held.view(np.uint16).reshape(-1, 8, 8)
        if transposed:
            matrices = matrices.swapaxes(1, 2)
        threads.launch.shared.store(threads.epoch, access, np.ascontiguousarray(matrices).reshape(-1, 8))

    return step


def multiply(numbers: Callable[[np.ndarray], np.ndarray]) -> Step:
    """D = A B + C of tiles [16, K], [K, 8] and [16, 8], summed in float64 and rounded once to float32.

    numbers: what a register of A or B holds, in float32 along a new last axis: one number or two. K is 8 or 16.
    """

    def step(threads: Threads, operands: tuple[Operand, ...]) -> None:
        targets, *factors, addend = operands
        assert isinstance(targets, Group)
        threads.all_take_part()
        a, b = (numbers(_registers(threads, factor, "b32")).astype(np.float64) for factor in factors)
        c = _registers(threads, addend, "f32").astype(np.float64)
        each, warps = a.shape[-1], a.shape[:2]
        tile_a, tile_b, tile_c = (np.empty((*warps, *shape)) for shape in ((16, 8 * each), (8 * each, 8), (16, 8)))
        for part in range(each):
            along = each * (np.arange(WARP) % 4) + part
            for n in range(4):
                tile_a[:, :, ROW + 8 * (n % 2), along + 4 * each * (n // 2)] = a[..., n, part]
            for n in range(2):
                tile_b[:, :, along + 4 * each * n, ROW] = b[..., n, part]
        for n in range(4):
            tile_c[:, :, ROW + 8 * (n // 2), COLUMN + n % 2] = c[..., n]
        product = (tile_a @ tile_b + tile_c).astype(np.float32)
        for n, register in enumerate(targets.parts):
            values = product[:, :, ROW + 8 * (n // 2), COLUMN + n % 2]
            threads.write(register, values.reshape(threads.shape), "f32")

    return step


def _rows(threads: Threads, address: Operand, count: int) -> Access:
    """The rows of `count` matrices, of all warps."""
    threads.all_take_part()
    taking = np.arange(threads.shape[1]) % WARP < 8 * count
    rows, lanes = np.nonzero(np.tile(taking, (len(threads.programs), 1)))
    return accessed(threads, rows, lanes, threads.addresses(address)[rows, lanes], 16)


def _registers(threads: Threads, operand: Operand, kind: str) -> np.ndarray:
    """[programs, warps, 32, registers]."""
    assert isinstance(operand, Group)
    found = [threads.everywhere(threads.read(part, kind)) for part in operand.parts]
    return np.stack(found, -1).reshape(len(threads.programs), -1, WARP, len(found))


def _halves(bits: np.ndarray) -> np.ndarray:
    """The 16 bits of each half, the low one first."""
    return bits.view(np.uint16).reshape(*bits.shape, 2)


STEPS: dict[str, Step] = {
    f"{name}.sync.aligned.m8n8.x{count}{trans}.shared.b16": make(count, bool(trans))
    for name, make in {"ldmatrix": load_matrices, "stmatrix": store_matrices}.items()
    for count in (1, 2, 4)
    for trans in ("", ".trans")
}
STEPS |= {
    "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32": multiply(lambda bits: from_bfloat16(_halves(bits))),
    "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32": multiply(lambda bits: _halves(bits).view(np.float16)),
    "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32": multiply(lambda bits: truncated_to_tf32(bits)[..., None]),
}
