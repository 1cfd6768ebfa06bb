"""Memory of a training step beyond inputs, output and gradients: linear in the length for blocks, quadratic for dense.

Measured as the benchmark measures it, by the operating system in a process of its own: no buffer goes unseen.
"""

import time
from collections.abc import Callable

import pytest
import torch

from measure.memory import GIB, Memory, current, in_own_process, measure, peak, reset_peak
from relattn import RelativeEmbedding, relative_attention
from relattn.cli.bench.workload import Workload

MIB = 2**20
PATIENCE = 250.0
LENGTHS = (2048, 8192)
NOISE = 12 * MIB  # pages and code that the process first touches in the step; a score matrix of 8192 has 256 MiB


def beyond(backend: str, encoding: str, length: int, heads: int = 1) -> int:
    """Bytes of one causal training step in float32."""
    workload = Workload(encoding, length, 64, heads, causal=True, mode="training")
    return measure(f"relattn {backend}", workload, limit=8 * GIB, patience=PATIENCE).beyond


def grows_linearly(short: int, long: int, factor: int) -> bool:
    """Whether a step `factor` times as long takes at most so many times the memory."""
    return long <= factor * short + NOISE


def is_far_below_a_matrix(found: int, length: int, heads: int = 1) -> bool:
    """Whether it is less than a quarter of what one number for every pair takes."""
    return found <= heads * length**2


@pytest.mark.parametrize("encoding", ["relative", pytest.param("shaw", marks=pytest.mark.slow)])
def test_memory_of_blocks_is_linear(encoding: str) -> None:
    short, long = (beyond("blocks", encoding, length) for length in LENGTHS)
    assert grows_linearly(short, long, 4), f"{short / MIB:.0f} MiB, then {long / MIB:.0f} MiB"
    assert is_far_below_a_matrix(long, 8192), f"{long / MIB:.0f} MiB"


def test_memory_of_dense_is_seen_to_be_quadratic() -> None:
    """The same measurement turns red for a backend that holds score matrices."""
    short, long = (beyond("dense", "relative", length) for length in (1024, 4096))
    assert not grows_linearly(short, long, 4)
    assert not is_far_below_a_matrix(long, 4096)


@pytest.mark.slow
def test_memory_of_eight_heads_stays_small() -> None:
    assert beyond("blocks", "relative", 16384, heads=8) <= 256 * MIB


@pytest.mark.slow
def test_memory_grows_no_faster_than_length_to_the_1_1() -> None:
    short, long = (beyond("blocks", "relative", length) for length in (4096, 32768))
    assert long <= 8**1.1 * short, f"{short / MIB:.0f} MiB, then {long / MIB:.0f} MiB"


def windowed_step(began: Callable[[], None], length: int, window: int) -> Memory:
    """A training step of one head under a causal window."""
    query, key, value = (torch.randn(1, 1, length, 64, requires_grad=True) for _ in range(3))
    encoding = RelativeEmbedding(64, window, causal=True)
    began()
    before, start = current("cpu"), time.perf_counter()
    reset_peak("cpu")
    output = relative_attention(query, key, value, encoding=encoding, window=(window - 1, 0), backend="blocks")
    output.sum().backward()
    held, returned = sum(t.nbytes for t in (query, key, value)), 5 * output.nbytes
    return Memory(held, peak("cpu") - before, returned, time.perf_counter() - start)


@pytest.mark.slow
def test_a_windowed_step_over_262144_positions_fits_in_3_gib() -> None:
    assert in_own_process(windowed_step, (2**18, 1024), 3 * GIB, PATIENCE).total <= 3 * GIB
