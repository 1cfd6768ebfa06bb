"""Which cases of a product run, and which of them `make test` runs."""

from itertools import combinations, product
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from tests import conftest

FILE = SimpleNamespace(nodeid="test_file.py")


class Case:
    """What tests/conftest.py asks a collected test for."""

    path = FILE.nodeid

    def __init__(self, function: str, *marks: pytest.MarkDecorator, in_file: bool = False, **params: str):
        self.nodeid = f"{FILE.nodeid}::{function}[{'-'.join(params.values())}]"
        self.marks, self.node = [each.mark for each in marks], FILE if in_file else self
        self.callspec = SimpleNamespace(params=params)

    def iter_markers_with_node(self, name: str):
        return ((self.node, mark) for mark in self.marks if mark.name == name)

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return next((mark for mark in self.marks if mark.name == name), None)

    def add_marker(self, added: pytest.MarkDecorator) -> None:
        self.marks.append(added.mark)

    @property
    def slow(self) -> bool:
        return self.get_closest_marker("slow") is not None


def made(*functions: str, marks=(), slow_sizes="", **how) -> list[Case]:
    """Each function with every encoding, size and dtype."""
    return [
        Case(function, *marks, *[pytest.mark.slow] * (size in slow_sizes), name=name, size=size, dtype=dtype, **how)
        for function, name, size, dtype in product(functions, "abcdef", "123", "xy")
    ]


def left(cases: list[Case], monkeypatch: pytest.MonkeyPatch, one_in: str = "", fast: bool = True) -> list[Case]:
    """What of the cases stays; with one_in, of those only that -m leaves."""
    monkeypatch.delenv("RELATTN_SINCE", raising=False)
    monkeypatch.setenv("RELATTN_ONE_IN", one_in)
    every, told = list(cases), []
    config = Mock()
    config.hook.pytest_deselected = lambda items: told.extend(items)
    choosing = conftest.pytest_collection_modifyitems(config, cases)
    next(choosing)
    if one_in:
        told.extend(case for case in cases if case.slow is fast)
        cases[:] = [case for case in cases if case.slow is not fast]
    assert next(choosing, None) is None
    told.sort(key=every.index)
    assert [case for case in every if case not in cases] == told
    return cases


def pairs(cases: list[Case]) -> set:
    return {pair for case in cases for pair in combinations(case.callspec.params.items(), 2)}


def test_every_pair_of_a_product_is_met_by_few_cases(monkeypatch):
    found = left(made("one", "two", marks=[pytest.mark.pairs]), monkeypatch)
    for function in ("one", "two"):
        own = [case for case in found if function in case.nodeid]
        assert pairs(own) == pairs(made(function))
        assert 18 <= len(own) <= 22


def test_a_marked_file_is_one_product(monkeypatch):
    marks = [pytest.mark.pairs]
    found = left(made("one", "two", marks=marks, in_file=True), monkeypatch)
    assert pairs(found) == pairs(made("one"))
    assert len(found) <= 24
    for function in ("one", "two"):
        values = {value for case in found if function in case.nodeid for value in case.callspec.params.items()}
        assert len(values) == 6 + 3 + 2


def test_a_slow_case_stays_where_no_fast_one_meets_its_pairs(monkeypatch):
    found = left(made("one", marks=[pytest.mark.pairs], slow_sizes="3"), monkeypatch)
    assert pairs(found) == pairs(made("one"))
    assert 6 <= sum(case.slow for case in found) <= 9


@pytest.mark.parametrize(("part", "fast"), [(1, 36), (2, 18), (3, 12), (5, 7), (100, 1)])
def test_a_part_is_fast_and_the_rest_is_slow(part, fast, monkeypatch):
    """The part meets the most pairs, and of a single parameter each value."""
    found = left(made("one", marks=[pytest.mark.one_in(part)]), monkeypatch)
    assert len(found) == 36
    quick = [case for case in found if not case.slow]
    assert len(quick) == fast
    assert fast < 12 or {value for case in quick for value in case.callspec.params.items()} == {
        value for case in found for value in case.callspec.params.items()
    }
    assert part != 2 or pairs(quick) == pairs(found)


def test_a_part_of_the_pairs(monkeypatch):
    """What is slow anyway is no case of it."""
    marks = [pytest.mark.pairs, pytest.mark.one_in(2)]
    found = left(made("one", marks=marks, slow_sizes="3"), monkeypatch)
    assert pairs(found) == pairs(made("one"))
    assert not any(case.callspec.params["size"] == "3" for case in found if not case.slow)
    assert 4 <= sum(not case.slow for case in found) <= 8


def test_the_same_cases_whatever_else_is_collected(monkeypatch):
    marks = [pytest.mark.pairs, pytest.mark.one_in(2)]
    alone, among = (left(made(*names, marks=marks), monkeypatch) for names in (("one",), ("other", "one")))
    alone, among = ({(case.nodeid, case.slow) for case in cases if "one" in case.nodeid} for cases in (alone, among))
    assert alone == among


@pytest.mark.parametrize(("fast", "count"), [(True, 6), (False, 3)])
def test_a_share_of_a_file_is_taken_of_what_was_chosen(fast, count, monkeypatch):
    """48 fast cases and 24 slow ones: an eighth of either, both functions and every encoding among the six."""
    found = left(made("one", "two", slow_sizes="3"), monkeypatch, one_in="8", fast=fast)
    assert len(found) == count
    assert not any(case.slow is fast for case in found)
    assert {case.nodeid.partition("[")[0] for case in found} == {"test_file.py::one", "test_file.py::two"}
    assert not fast or {case.callspec.params["name"] for case in found} == {*"abcdef"}


def test_a_share_is_one_case_of_a_file_at_least(monkeypatch):
    assert len(left(made("one"), monkeypatch, one_in="100")) == 1
