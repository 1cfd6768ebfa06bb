"""Turns and their ratios, by a clock that the calls themselves move."""

import pytest

from relattn.bench import timing
from relattn.bench.timing import LEAST_TURNS, MOST_TURNS, Spread, interleaved


class Clock:
    """Stands still until somebody works."""

    def __init__(self):
        self.now = 0.0
        self.order = []

    def perf_counter(self):
        return self.now

    def worker(self, name, seconds):
        def work():
            self.order.append(name)
            self.now += seconds(self.order.count(name)) if callable(seconds) else seconds

        return work


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(timing, "time", made)
    return made


def test_turns_alternate_after_a_warm_up_and_fill_the_time(clock):
    found = interleaved(clock.worker("floor", 1.0), clock.worker("ours", 3.0), 40.0, "cpu")
    assert clock.order == ["floor", "ours"] * 11
    assert found.turns == 10
    assert found.seconds == Spread(3.0, 3.0, 3.0)
    assert found.ratio == Spread(3.0, 3.0, 3.0)


def test_the_slow_get_three_turns_and_the_quick_no_more_than_enough(clock):
    assert interleaved(clock.worker("floor", 1.0), clock.worker("slow", 99.0), 1.0, "cpu").turns == LEAST_TURNS == 3
    assert interleaved(clock.worker("floor", 1e-9), clock.worker("quick", 1e-9), 1.0, "cpu").turns == MOST_TURNS


def test_a_ratio_is_taken_within_its_turn(clock):
    """Both grow slower together: the ratio stays, whatever the times do."""
    found = interleaved(clock.worker("floor", lambda n: n), clock.worker("ours", lambda n: 2 * n), 30.0, "cpu")
    assert found.ratio == Spread(2.0, 2.0, 2.0)
    assert found.seconds.lower < found.seconds.median < found.seconds.upper


def test_the_warm_up_does_not_count(clock):
    found = interleaved(clock.worker("floor", 1.0), clock.worker("ours", lambda n: 1000 if n == 1 else 2), 9.0, "cpu")
    assert found.seconds.upper == 2
