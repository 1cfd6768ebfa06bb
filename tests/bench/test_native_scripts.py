"""benchmarks/native.py and benchmarks/cost_per_pair.py at tiny lengths: what they print, and what stops them."""

import importlib
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from relattn.bench import timing
from relattn.bench.candidates import CANDIDATES
from relattn.bench.timing import Spread, Timing

SCRIPTS = Path(__file__).parent.parent.parent / "benchmarks"
ONE = Spread(1.5, 1.5, 1.5)


@pytest.fixture
def script(monkeypatch):
    """A script as a module, with the modules beside it within its reach."""
    monkeypatch.syspath_prepend(SCRIPTS)
    monkeypatch.setattr(timing, "MOST_ROUNDS", 1)
    threads = torch.get_num_threads()
    yield importlib.import_module
    torch.set_num_threads(threads)
    for name in ("goals", "native", "cost_per_pair"):
        sys.modules.pop(name, None)


def printed(module, monkeypatch, capsys, *arguments):
    """The rows of the tables that it prints, cell by cell."""
    monkeypatch.setattr(sys, "argv", ["script", *arguments, "--threads", "1", "--seconds", "0.001"])
    module.main()
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ") and "L=" not in line]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]


@pytest.mark.parametrize(
    ("goal", "ratios", "said"),
    [
        (None, {512: 9.0}, ("", "")),
        (1.0, {512: 0.9, 1024: 1.0, 2048: 1.1}, ("1.00", "met")),
        (1.0, {512: 0.9, 1024: 1.0, 2048: 1.11}, ("1.00", "missed at 2048")),
        (1.0, {512: 0.9, 1024: 1.05, 2048: 1.06}, ("1.00", "missed by 5%")),
        (1.0, {512: 1.2, 1024: 1.2, 2048: 1.0}, ("1.00", "missed by 20% and at 512, 1024")),
        ({16: 4.0, 64: 2.0}, {16: 4.0, 64: 2.0}, ("4 / 2", "met")),
        ({16: 4.0, 64: 2.0}, {16: 3.0, 64: 2.1}, ("4 / 2", "missed at 64")),
        ({16: 4.0, 64: 2.0}, {64: 2.1}, ("2", "missed at 64")),
    ],
)
def test_a_goal_bounds_the_median_and_nearly_every_length(script, goal, ratios, said):
    native = script("native")
    assert native.verdict(native.Row("", native.TABLES["window"].rows[0].workload, goal), ratios) == said


def test_every_row_is_another_workload_and_every_length_has_a_goal(script):
    for table in script("goals").TABLES.values():
        assert len({row.workload for row in table.rows}) == len(table.rows)
        assert all(set(table.lengths) <= set(row.goal) for row in table.rows if isinstance(row.goal, dict))


def test_rows_with_a_goal_have_their_projection_apart(script):
    projected = ("transformer-xl", "disentangled")
    rows = [row for row in script("goals").TABLES["encodings"].rows if row.workload.encoding in projected]
    assert {(row.goal is None, row.workload.lowered, "projection" in row.name) for row in rows} == {
        (False, True, False),
        (True, False, True),
    }


@pytest.mark.slow
def test_the_tables_of_native(script, monkeypatch, capsys):
    native = script("native")
    rows = printed(native, monkeypatch, capsys, "decoding", "--lengths", "24,32", "--rows", "alibi,rope")
    assert [row[:2] for row in rows] == [["alibi", "decoding"], ["rope", "decoding"]]
    assert all(len(row) == 7 and row[5] == "0.85" for row in rows)
    rows = printed(native, monkeypatch, capsys, "small", "--lengths", "16", "--rows", "relative-heads")
    assert [[*row[:2], *row[3:5]] for row in rows] == [
        ["relative-heads", "forward", "", "4"],
        ["relative-heads", "forward, causal", "", "4"],
    ]
    rows = printed(native, monkeypatch, capsys, "encodings", "--lengths", "32", "--rows", "transformer-xl")
    assert [row[1] for row in rows] == 2 * ["forward", "training", "forward, causal", "training, causal"]


def test_a_window_s_ratio_is_over_its_share_of_the_pairs(script, monkeypatch, capsys):
    native = script("native")
    monkeypatch.setattr(native, "checked", lambda who, workload: None)
    monkeypatch.setattr(native, "timed", lambda who, workload, seconds: Timing(ONE, ONE, None, 15, 1))
    rows = printed(native, monkeypatch, capsys, "window", "--rows", "relative")
    full, causal = (8192**2, 8192 * 8193 // 2)
    shares = [(8192 * 513 - 256 * 257) / full, (8192 * 257 - 256 * 257 // 2) / causal]
    assert [row[2] for row in rows] == [f"{1.5 / share:.2f}" for share in (shares[0], shares[0], shares[1], shares[1])]


def test_a_wrong_answer_stops_it(script, monkeypatch, capsys):
    native = script("native")
    right = CANDIDATES["relattn native"]
    wrong = replace(right, prepare=lambda case: right.prepare(replace(case, value=case.key, key=case.value)))
    monkeypatch.setattr(native, "candidate", lambda backend: wrong)
    with pytest.raises(AssertionError, match="output"):
        printed(native, monkeypatch, capsys, "batches", "--lengths", "16")


def test_cost_per_pair_of_a_clock_that_counts_pairs(script, monkeypatch, capsys):
    """Time in proportion to the pairs costs the same at every length; a tenth and more above it misses."""
    cost = script("cost_per_pair")
    monkeypatch.setattr(cost, "checked", lambda who, workload: None)

    def beside(workload, reference, length, seconds):
        spent = [8e-12 * workload.heads * workload.at(each).pairs for each in (reference, length)]
        ratio = spent[1] / spent[0] * (1.12 if length == 32768 and workload.causal else 1.0)
        return Timing(Spread(*[ratio * spent[0]] * 3), Spread(*[ratio] * 3), None, 15, 1)

    monkeypatch.setattr(cost, "beside", beside)
    for table, lengths in (("full", 5), ("window", 4)):
        rows = printed(cost, monkeypatch, capsys, table)[1:]
        assert [row[2:] for row in rows[:2]] == [[*["1.00"] * lengths, "8", "1.00", "met"]] * 2
        assert [row[2:] for row in rows[2:]] == [[*["1.00"] * (lengths - 1), "1.12", "8", "1.12", "missed"]] * 2


def test_cost_per_pair_measures(script, monkeypatch, capsys):
    cost = script("cost_per_pair")
    rows = printed(cost, monkeypatch, capsys, "window", "--reference", "24", "--lengths", "16", "--modes", "forward")[
        1:
    ]
    assert [row[1] for row in rows] == ["forward", "forward, causal"]
    assert all(float(row[2].partition(" ")[0]) > 0 for row in rows)
