"""The peak of a step in a process of its own."""

import os
import signal
import time

import pytest
import torch

from measure.memory import (
    GIB,
    Memory,
    OverMemoryError,
    OverTimeError,
    available,
    current,
    in_own_process,
    measure,
    peak,
    reset_peak,
)
from relattn.cli.bench.workload import Workload

MIB = 2**20
PATIENCE = 60.0


def buffer_of(began, kept, dropped):
    """Keeps a buffer of `kept` bytes while one of `dropped` comes and goes."""
    torch.ones(MIB)
    before = current("cpu")
    began()
    reset_peak("cpu")
    buffer = torch.ones(kept, dtype=torch.int8)
    torch.ones(dropped, dtype=torch.int8)
    return Memory(0, peak("cpu") - before, buffer.nbytes, 0.0)


def buffer_before(began, size):
    """A buffer that is gone before the step begins."""
    torch.ones(size, dtype=torch.int8)
    before = current("cpu")
    began()
    reset_peak("cpu")
    return Memory(0, peak("cpu") - before, 0, 0.0)


def sleeper(began):
    began()
    time.sleep(PATIENCE)


def raiser(began):
    raise ValueError("no such thing\nand more")


def killed(began):
    began()
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_known_buffer_is_seen():
    found = in_own_process(buffer_of, (64 * MIB, 32 * MIB), GIB, PATIENCE)
    assert abs(found.peak - 96 * MIB) < MIB
    assert abs(found.beyond - 32 * MIB) < MIB


def test_what_came_before_is_not_counted():
    assert in_own_process(buffer_before, (256 * MIB,), GIB, PATIENCE).peak < MIB


def test_a_quadratic_buffer_is_seen_in_a_candidate():
    work = Workload("relative", 256, 8, 2, False, "training")
    short, long = (measure("plain, strided", work.at(length), GIB, PATIENCE) for length in (256, 512))
    scores = 2 * 512 * 512 * 4
    assert long.beyond > scores
    assert long.beyond - short.beyond > 2 * 0.75 * scores  # it keeps two of them at least, a quarter the size at 256
    assert long.held == 4 * (4 * 2 * 512 * 8 + 1023 * 8)
    assert long.returned == 4 * (4 * 2 * 512 * 8 + 1023 * 8)
    assert long.total == long.held + long.peak


def test_over_memory():
    with pytest.raises(OverMemoryError, match=r"needs 0\.1 GiB or more"):
        in_own_process(buffer_of, (GIB, 0), GIB // 10, PATIENCE)


def test_over_time():
    with pytest.raises(OverTimeError, match=r"one step takes longer than 0\.1 s"):
        in_own_process(sleeper, (), GIB, 0.1)


def test_an_error_is_passed_on_in_a_line():
    with pytest.raises(RuntimeError, match=r"^ValueError: no such thing$"):
        in_own_process(raiser, (), GIB, PATIENCE)


def test_a_process_that_the_system_kills_is_over_memory():
    with pytest.raises(OverMemoryError, match="its process ended with code -9, killed by the system"):
        in_own_process(killed, (), GIB, PATIENCE)


def test_what_is_available_is_positive_and_less_than_a_petabyte():
    assert 0 < available("cpu") < 2**50
