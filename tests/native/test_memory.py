"""Memory of the kernels beyond inputs, outputs and gradients: what a step may take, and what a thread adds.

The peaks are measured as in `tests.test_blocks_memory`, by the operating system in a process of its own.
"""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from measure.memory import GIB, measure
from relattn import KeyQueryEmbedding, ShawEmbedding, relative_attention
from relattn.backends.cpu import operator
from relattn.cli.bench.workload import Workload

MIB = 2**20
FLOAT = 4
PATIENCE = 280.0
HEADS, WIDTH, THREADS = 8, 64, 2
THREAD = 2 * MIB
"""The most that a thread may add, whatever the lengths."""
PAGES = 2 * MIB
"""Pages of code, and of the allocator, that the process first touches in the step."""

both_ways = pytest.mark.parametrize("causal", [True, pytest.param(False, marks=pytest.mark.slow)])


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    yield
    torch.set_num_threads(before)


def beyond(length: int, *, causal: bool, mode: str, **changes) -> int:
    """Bytes of a step in float32, with a row of the table for every offset."""
    workload = Workload("relative", length, WIDTH, HEADS, causal=causal, mode=mode, **changes)
    return measure("relattn native", workload, limit=8 * GIB, patience=PATIENCE).beyond


def packed_once(length: int, *, causal: bool) -> int:
    """Bytes of the keys and of the table."""
    rows = length if causal else 2 * length - 1
    return FLOAT * WIDTH * (HEADS * length + rows)


@both_ways
def test_a_forward_pass_packs_keys_and_tables_once(causal: bool, two_threads) -> None:
    found = beyond(4096, causal=causal, mode="forward")
    assert found <= packed_once(4096, causal=causal) + THREADS * THREAD + PAGES, f"{found / MIB:.1f} MiB"


@pytest.mark.slow
@both_ways
def test_a_training_step(causal: bool, two_threads) -> None:
    found = beyond(4096, causal=causal, mode="training")
    assert found <= 24 * MIB, f"{found / MIB:.1f} MiB"


@pytest.mark.slow
@pytest.mark.parametrize("causal", [True, False])
def test_a_long_training_step(causal: bool, two_threads) -> None:
    found = beyond(16384, causal=causal, mode="training")
    assert found <= 80 * MIB, f"{found / MIB:.1f} MiB"


@pytest.mark.one_in(4)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("queries", [None, 2], ids=["blocks of queries", "few queries"])
def test_a_thread_adds_the_same_at_every_length(
    queries: int | None, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no more than 2 MiB. Of a call without gradients, which takes one workspace, and a training step, which takes
    two, with tables of every kind but a bias.
    """
    for least in ("PAIRS_TO_SHARE", "FEW_PAIRS_TO_SHARE"):
        monkeypatch.setattr(operator, least, 0)
    found: list[int] = []
    given = operator.unwritten

    def recorded(floats: int) -> Tensor:
        workspace = given(floats)
        found.append(workspace.nbytes)
        return workspace

    monkeypatch.setattr(operator, "unwritten", recorded)
    encoding = (KeyQueryEmbedding(WIDTH, 2000) + ShawEmbedding(WIDTH, 16)).to(dtype)

    def workspaces(length: int, threads: int) -> list[int]:
        torch.set_num_threads(threads)
        query, key, value = (
            torch.randn(1, 1, n, WIDTH, dtype=dtype, requires_grad=True) for n in (queries or length, length, length)
        )
        found.clear()
        with torch.no_grad():
            relative_attention(query, key, value, encoding=encoding, backend="native")
        relative_attention(query, key, value, encoding=encoding, backend="native").sum().backward()
        return list(found)

    before = torch.get_num_threads()
    try:
        sizes = {length: [workspaces(length, threads) for threads in (1, 2, 4)] for length in (600, 1800)}
    finally:
        torch.set_num_threads(before)
    added = {
        tuple((later - one) // extra for one, later in zip(alone, several, strict=True))
        for alone, *more in sizes.values()
        for extra, several in zip((1, 3), more, strict=True)
    }
    assert len(added) == 1, added
    (of_a_thread,) = added
    assert len(of_a_thread) == 3 and all(0 < size <= THREAD for size in of_a_thread), of_a_thread
