"""Pairs and their ratios, by a clock that the calls themselves move."""

import pytest

from relattn.cli.bench import timing
from relattn.cli.bench.timing import LEAST_PAIRS, MOST_PAIRS, MOST_ROUNDS, Spread, interleaved


class Clock:
    """Stands still until somebody works. What is waited for others is no processor time."""

    def __init__(self):
        self.now = self.waited = 0.0
        self.order = []

    def perf_counter(self):
        return self.now

    def thread_time(self):
        return self.now - self.waited

    def worker(self, name, seconds, waits=0.0):
        def work():
            self.order.append(name)
            self.now += seconds(self.order.count(name)) if callable(seconds) else seconds
            self.now += waits
            self.waited += waits

        return work


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(timing, "time", made)
    return made


def test_pairs_alternate_after_a_warm_up_and_fill_the_time(clock):
    found = interleaved(clock.worker("floor", 1.0), clock.worker("ours", 3.0), 80.0, "cpu")
    assert clock.order == ["floor", "ours"] * 21
    assert found.pairs == 20
    assert found.rounds == 1
    assert found.seconds == Spread(3.0, 3.0, 3.0)
    assert found.ratio == found.processor_ratio == Spread(3.0, 3.0, 3.0)


def test_the_slow_get_fifteen_pairs_and_the_quick_no_more_than_enough(clock):
    assert interleaved(clock.worker("floor", 1.0), clock.worker("slow", 99.0), 1.0, "cpu").pairs == LEAST_PAIRS == 15
    assert interleaved(clock.worker("floor", 1e-9), clock.worker("quick", 1e-9), 1.0, "cpu").pairs == MOST_PAIRS


def test_a_ratio_is_taken_within_its_pair(clock):
    """Both grow slower together: the ratio stays, whatever the times do."""
    found = interleaved(clock.worker("floor", lambda n: n), clock.worker("ours", lambda n: 2 * n), 30.0, "cpu")
    assert found.ratio == Spread(2.0, 2.0, 2.0)
    assert found.seconds.lower < found.seconds.median < found.seconds.upper


def test_the_warm_up_does_not_count(clock):
    found = interleaved(clock.worker("floor", 1.0), clock.worker("ours", lambda n: 1000 if n == 1 else 2), 9.0, "cpu")
    assert found.seconds.upper == 2


def test_waiting_is_no_processor_time(clock):
    found = interleaved(clock.worker("floor", 1.0), clock.worker("ours", 2.0, waits=4.0), 9.0, "cpu")
    assert found.ratio.median == 6.0
    assert found.processor_ratio == Spread(2.0, 2.0, 2.0)


def test_what_spreads_is_measured_again_and_the_steadiest_kept(clock):
    def quiet_later(n):  # the warm-up and 15 pairs of 2 and 4 in turn, then 3
        return (2.0 if n % 2 else 4.0) if n <= 1 + LEAST_PAIRS else 3.0

    found = interleaved(clock.worker("floor", 1.0), clock.worker("ours", quiet_later), 9.0, "cpu")
    assert found.rounds == 2
    assert found.ratio == Spread(3.0, 3.0, 3.0)
    assert found.ratio.is_steady


def test_what_never_settles_says_so(clock):
    found = interleaved(clock.worker("floor", 1.0), clock.worker("ours", lambda n: 1.0 + n % 3), 9.0, "cpu")
    assert found.rounds == MOST_ROUNDS
    assert not found.ratio.is_steady


class Device(list):
    """In place of torch.cuda: notes what it is given to do."""

    def Event(self, enable_timing):
        return self

    def record(self):
        self.append("mark")

    def _sleep(self, cycles):
        self.append(f"busy for {1000 * cycles / timing.CYCLES:.0f} ms")

    def synchronize(self):
        self.append("wait")

    def elapsed_time(self, stop):
        return 250.0


@pytest.fixture
def device(clock, monkeypatch):
    made = Device()
    monkeypatch.setattr(timing.torch, "cuda", made)
    return made


def test_a_device_is_busy_before_a_call_is_timed(clock, device):
    found = interleaved(lambda: device.append("floor"), lambda: device.append("ours"), 0.0, "cuda")
    assert found.seconds.median == 0.25
    assert device[3:8] == ["busy for 10 ms", "mark", "floor", "mark", "wait"], "after a warm-up of three steps"
