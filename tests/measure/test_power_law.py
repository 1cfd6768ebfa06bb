"""Exponents, and the longest sequence, on synthetic data."""

import math

import pytest

from measure.longest import longest
from measure.memory import Memory, OverMemoryError, OverTimeError
from measure.power_law import PowerLaw, fit

BUDGET = 10**8


@pytest.mark.parametrize("exponent", [0.5, 1.0, 2.0, 2.7])
def test_a_power_law_is_found_again(exponent):
    law = fit({length: 3.0 * length**exponent for length in (128, 512, 1024, 4096)})
    assert law.exponent == pytest.approx(exponent)
    assert law.factor == pytest.approx(3.0)
    assert law.length(law.value(777)) == pytest.approx(777)


def test_no_law_without_two_positive_points():
    assert fit({}) is None
    assert fit({128: 1.0}) is None
    assert fit({128: 1.0, 256: 0.0}) is None


def test_what_does_not_grow_has_no_end():
    assert PowerLaw(3.0, 0.0).length(4.0) == math.inf
    assert PowerLaw(3.0, -0.1).length(4.0) == math.inf


class Machine:
    """A candidate whose memory and time are formulas; counts what is run."""

    def __init__(self, memory, seconds=lambda length: 0.0 * length + 1e-6, patience=1.0, limit=math.inf):
        self.memory, self.seconds, self.patience, self.limit = memory, seconds, patience, limit
        self.ran = []

    def __call__(self, length):
        self.ran.append(length)
        if self.memory(length) > self.limit:
            raise OverMemoryError("memory")
        if self.seconds(length) > self.patience:
            raise OverTimeError("time")
        return Memory(0, round(self.memory(length)), 0, self.seconds(length))

    def longest(self, *known):
        found = {length: Memory(0, round(self.memory(length)), 0, self.seconds(length)) for length in known}
        return longest(self, found, BUDGET, self.patience)


@pytest.mark.parametrize(
    "memory",
    [lambda n: 8 * n**2, lambda n: 5000 * n, lambda n: 5000 * n + n**2 / 3, lambda n: 1e6 + 40 * n**1.5],
    ids=["quadratic", "linear", "both", "offset"],
)
@pytest.mark.parametrize("limit", [math.inf, 2 * BUDGET, BUDGET])
def test_a_measured_answer_fits_and_five_percent_more_does_not(memory, limit):
    machine = Machine(memory, limit=limit)
    found = machine.longest(512)
    assert found.how == "measured"
    assert found.length in machine.ran
    assert memory(found.length) <= BUDGET < memory(1.05 * found.length + 64)
    assert len(machine.ran) < 20


def test_beyond_patience_the_law_answers():
    machine = Machine(lambda n: 5000 * n, seconds=lambda n: 1e-7 * n**2)
    found = machine.longest(512, 1024)
    assert found.how == "modelled"
    assert found.length == 20000 // 64 * 64
    assert max(machine.ran) <= math.sqrt(1.0 / 1e-7)
    assert found.basis == (512, 1024, 2048)


def test_a_step_that_overruns_ends_the_search():
    machine = Machine(lambda n: 5000 * n, seconds=lambda n: 1e-3 if n <= 1024 else 9.0)
    found = machine.longest(512, 1024)
    assert found.how == "modelled"
    assert found.length == 20000 // 64 * 64
    assert machine.ran == [2048]


def test_one_length_alone_has_no_law():
    machine = Machine(lambda n: 5000 * n, seconds=lambda n: 1e-3 if n <= 512 else 9.0)
    found = machine.longest(512)
    assert (found.how, found.length, found.basis) == ("at least", 512, (512,))


def test_a_known_length_that_does_not_fit_bounds_the_search():
    machine = Machine(lambda n: 8 * n**2)
    found = machine.longest(512, 8192)
    assert found.how == "measured"
    assert max(machine.ran) < 8192


def test_nothing_fits():
    machine = Machine(lambda n: 8.0 * BUDGET)
    assert machine.longest(512) is None
    assert machine.ran == []


def test_the_model_grows_in_line_with_the_length_at_the_least():
    """A law through points that fall would promise more than inputs leave room for."""
    machine = Machine(lambda n: 9e6 if n < 1024 else 4e6 + 5000 * n, seconds=lambda n: 1e-3 if n <= 2048 else 9.0)
    found = machine.longest(512, 1024)
    per_element = (4e6 + 5000 * 2048) / 2048
    assert (found.how, found.length) == ("modelled", int(BUDGET / per_element) // 64 * 64)
