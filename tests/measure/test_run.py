"""A whole benchmark at tiny lengths: what is measured, what is not and why, and how it is shown."""

import io
import json
import math
import re
from dataclasses import replace

import pytest
from rich.console import Console

from measure import markdown, run, tables
from measure.candidates import CANDIDATES, Candidate
from measure.memory import Memory, OverMemoryError, OverTimeError
from measure.pictures import draw
from measure.run import Benchmark
from measure.settings import Settings
from relattn.cli.bench import timing
from relattn.cli.bench.relattn_candidates import FLOOR
from relattn.cli.bench.timing import Spread
from relattn_lab.support.progress import Silent

NAMES = (FLOOR, "relattn native", "relattn dense", "plain", "plain, strided")
KIB = 2**10
SETTINGS = Settings(
    ("relative", "alibi"),
    (32, 64),
    ("no", "yes"),
    ("forward", "training", "decoding"),
    (8,),
    (2,),
    device="cpu",
    seconds=1e-3,
)


def defined(work):
    return None


def doubled(case):
    return lambda: 2.0 * CANDIDATES["relattn dense"].prepare(case)()


def breaks(case):
    raise RuntimeError("out of order\nsince Monday")


def quadratic(name, workload, limit, patience):
    """Stands for a process of its own, which test_memory.py tries."""
    return Memory(1000 * workload.length, KIB * workload.length**2, 1000, 1e-3)


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """The results of a benchmark in which one candidate is wrong and one breaks; and its folder."""
    folder = tmp_path_factory.mktemp("bench")
    with pytest.MonkeyPatch.context() as patch:
        few = {name: CANDIDATES[name] for name in NAMES}
        few |= {"wrong one": Candidate(doubled, defined), "broken one": Candidate(breaks, defined)}
        patch.setattr(run, "CANDIDATES", few)
        patch.setattr(run, "measure", quadratic)
        patch.setattr(timing, "MOST_ROUNDS", 1)
        return run.Benchmark(SETTINGS, folder, Silent()).run(), folder


def of(results, candidate):
    return [m for m in results.measurements if m.candidate == candidate]


def shown(results):
    console = Console(file=io.StringIO(), width=160)
    for table in tables.terminal(results):
        console.print(table)
    return console.file.getvalue()


@pytest.mark.slow
def test_every_candidate_has_figures_or_a_reason_on_every_workload(done):
    results, _ = done
    assert len(results.measurements) == 20 * 7
    for m in results.measurements:
        assert (m.reason is None) == (m.timing is not None) == (m.memory is not None), m
    assert all(m.timing is not None for m in of(results, FLOOR) + of(results, "relattn dense"))


@pytest.mark.slow
def test_what_auto_takes_is_marked(done):
    results, _ = done
    taken = {m.workload: m.candidate for m in results.measurements if m.chosen}
    assert len(taken) == 20
    for workload, candidate in taken.items():  # few pairs: dense has a second derivative, native costs less
        assert candidate == ("relattn dense" if workload.training else "relattn native")
    assert "relattn native (auto)" in shown(results)


@pytest.mark.slow
def test_a_wrong_candidate_gets_no_figure(done):
    results, _ = done
    for m in of(results, "wrong one"):
        assert m.is_wrong
        assert m.timing is m.memory is m.teraflops is None
        assert re.fullmatch(r"wrong: .* is off by \S+, allowed \S+", m.reason)
    assert re.search(r"wrong one +wrong +by \d", shown(results))


@pytest.mark.slow
def test_what_breaks_says_how(done):
    results, _ = done
    assert {m.reason for m in of(results, "broken one")} == {"fails: RuntimeError: out of order"}


@pytest.mark.slow
def test_the_file_holds_everything(done):
    results, folder = done
    kept = json.loads((folder / "results.json").read_text())
    assert set(kept) == {
        "format", "date", "settings", "machine", "versions", "measurements", "growth", "regret", "max_length",
    }  # fmt: skip
    assert kept["settings"]["lengths"] == [32, 64]
    assert {"processor", "cores", "torch_threads"} <= set(kept["machine"])
    assert "torch" in kept["versions"]
    assert len(kept["measurements"]) == len(results.measurements)
    for record, m in zip(kept["measurements"], results.measurements, strict=True):
        assert record["candidate"] == m.candidate
        assert record["workload"]["length"] == m.workload.length
        if m.timing is not None:
            assert record["timing"]["seconds"]["median"] == m.timing.seconds.median
            assert record["teraflops"] == pytest.approx(m.workload.flops / m.timing.seconds.median / 1e12)
            assert record["bytes_beyond"] == m.memory.beyond


def test_the_file_is_written_as_it_goes(tmp_path, monkeypatch):
    def interrupted(candidate, workload):
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "CANDIDATES", {FLOOR: CANDIDATES[FLOOR], "plain": CANDIDATES["plain"]})
    monkeypatch.setattr(run, "check", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Benchmark(Settings(("relative",), (32,), device="cpu"), tmp_path, Silent()).run()
    assert not (tmp_path / "results.json").exists()
    monkeypatch.setattr(run, "CANDIDATES", {"plain": CANDIDATES["plain"], FLOOR: CANDIDATES[FLOOR]})
    with pytest.raises(KeyboardInterrupt):
        Benchmark(Settings(("relative",), (32,), device="cpu"), tmp_path, Silent()).run()
    assert [m["candidate"] for m in json.loads((tmp_path / "results.json").read_text())["measurements"]] == ["plain"]


def of_a_few(monkeypatch, measured=quadratic):
    """A benchmark of three lengths and two candidates, into a folder; it notes what was measured."""
    tried = []

    def noted(name, workload, limit, patience):
        tried.append((name, workload.length))
        return measured(name, workload, limit, patience)

    monkeypatch.setattr(run, "CANDIDATES", {name: CANDIDATES[name] for name in (FLOOR, "plain")})
    monkeypatch.setattr(run, "measure", noted)
    monkeypatch.setattr(timing, "MOST_ROUNDS", 1)
    settings = Settings(
        ("alibi",), (32, 64, 128), ("yes",), ("training",), (8,), (2,), device="cpu", seconds=1e-3, max_length=0.1
    )
    return lambda folder: run.Benchmark(settings, folder, Silent()).run(), tried


def test_what_was_measured_is_not_measured_again(tmp_path, monkeypatch):
    """Stopped within the grid, and within the search for the longest; then all of it is there."""
    stops = [129, 64]

    def stopped(name, workload, limit, patience):
        if stops and name == "plain" and workload.length >= stops[-1]:
            stops.pop()
            raise KeyboardInterrupt
        return quadratic(name, workload, limit, patience)

    measured, tried = of_a_few(monkeypatch, stopped)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            measured(tmp_path)
    kept = json.loads((tmp_path / "results.json").read_text())
    results = measured(tmp_path)
    assert [name for name, length in tried if length <= 128] == [
        FLOOR,
        "plain",
        FLOOR,
        "plain",
        "plain",
        FLOOR,
        "plain",
    ]
    assert len(results.measurements) == 6
    assert [reach.longest.how for reach in results.reaches] == ["measured", "measured"]
    whole = json.loads((tmp_path / "results.json").read_text())
    assert whole["measurements"] == kept["measurements"]
    assert whole["date"] == kept["date"]
    before = list(tried)
    assert json.loads(json.dumps(measured(tmp_path).record())) == whole
    assert tried == before


def test_who_was_given_up_before_a_stop_is_not_tried_after_it(tmp_path, monkeypatch):
    def slow(name, workload, limit, patience):
        if workload.length == 128:
            raise KeyboardInterrupt
        if name == "plain":
            raise OverTimeError("one step takes longer than 5 s")
        return quadratic(name, workload, limit, patience)

    measured, _ = of_a_few(monkeypatch, slow)
    with pytest.raises(KeyboardInterrupt):
        measured(tmp_path)
    measured, tried = of_a_few(monkeypatch)
    assert of(measured(tmp_path), "plain")[-1].reason == "one step takes longer than 5 s at L=32"
    assert (FLOOR, 128) in tried


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("part", "key", "value", "said"),
    [
        (
            "settings",
            "lengths",
            [32, 64],
            r"lengths \(32, 64\); expected \(32, 64, 128\), as asked; give another folder",
        ),
        ("settings", "device", "cuda", "device cuda; expected cpu, as asked; give another folder"),
        ("machine", "processor", "Abacus", "processor Abacus; expected .*, as here; give another folder"),
        ("versions", "abacus", "1", "abacus 1; expected None, as here; give another folder"),
    ],
)
def test_measurements_of_another_question_or_place_are_not_mixed(tmp_path, monkeypatch, part, key, value, said):
    measured, _ = of_a_few(monkeypatch)
    measured(tmp_path)
    path = tmp_path / "results.json"
    kept = json.loads(path.read_text())
    kept[part][key] = value
    path.write_text(json.dumps(kept))
    with pytest.raises(ValueError, match=rf"^out: got {re.escape(str(path))}, which was begun with {said}"):
        measured(tmp_path)


def test_other_candidates_are_not_mixed(tmp_path, monkeypatch):
    measured, _ = of_a_few(monkeypatch)
    measured(tmp_path)
    monkeypatch.setattr(run, "CANDIDATES", {FLOOR: CANDIDATES[FLOOR]})
    with pytest.raises(ValueError, match="which holds plain; expected sdpa, no encoding alone, as asked; give another"):
        measured(tmp_path)


BROKEN = ["{", "[]", '{"format": 0}', '{"format": 1}', '{"settings": []}', '{"settings": {}, "machine": [1]}']


@pytest.mark.parametrize("broken", BROKEN)
def test_a_damaged_file_is_refused(tmp_path, monkeypatch, broken):
    measured, _ = of_a_few(monkeypatch)
    (tmp_path / "results.json").write_text(broken)
    with pytest.raises(ValueError, match=r"results.json, which holds no results of a benchmark; expected these"):
        measured(tmp_path)


def test_who_is_too_slow_is_not_tried_at_longer_lengths(tmp_path, monkeypatch):
    tried = []

    def slow(name, workload, limit, patience):
        tried.append(workload.length)
        raise OverTimeError("one step takes longer than 5 s")

    monkeypatch.setattr(run, "CANDIDATES", {"plain": CANDIDATES["plain"]})
    monkeypatch.setattr(run, "measure", slow)
    settings = Settings(("alibi",), (32, 64, 128), ("yes",), ("forward",), (8,), (2,), device="cpu")
    found = run.Benchmark(settings, tmp_path, Silent()).run().measurements
    assert tried == [32]
    assert [m.reason for m in found] == ["one step takes longer than 5 s"] + [
        "one step takes longer than 5 s at L=32"
    ] * 2


def test_a_step_that_fails_is_a_reason(tmp_path, monkeypatch):
    def fails(name, workload, limit, patience):
        raise RuntimeError("IndexError: too long")

    monkeypatch.setattr(run, "CANDIDATES", {FLOOR: CANDIDATES[FLOOR]})
    monkeypatch.setattr(run, "measure", fails)
    settings = Settings(("none",), (32,), ("yes",), ("training",), (8,), (2,), device="cpu", max_length=1.0)
    results = run.Benchmark(settings, tmp_path, Silent()).run()
    assert [m.reason for m in results.measurements] == ["IndexError: too long"]
    assert [reach.reason for reach in results.reaches] == ["IndexError: too long at L=32"]


def test_a_machine_smaller_than_the_budget_proves_nothing(tmp_path, monkeypatch):
    def refuses(name, workload, limit, patience):
        if workload.length > 100:
            raise OverMemoryError("needs more than this machine has")
        return quadratic(name, workload, limit, patience)

    monkeypatch.setattr(run, "CANDIDATES", {FLOOR: CANDIDATES[FLOOR]})
    monkeypatch.setattr(run, "measure", refuses)
    monkeypatch.setattr(run, "available", lambda device: 2**20)
    settings = Settings(
        ("none",), (32, 64), ("yes",), ("training",), (8,), (1,), device="cpu", seconds=1e-3, max_length=1
    )
    (reach,) = run.Benchmark(settings, tmp_path, Silent()).run().reaches
    assert reach.longest.how == "modelled"


def test_the_longest_sequence_is_looked_for(tmp_path, monkeypatch):
    names = (FLOOR, "plain", "flex", "plain, strided")
    monkeypatch.setattr(run, "CANDIDATES", {name: CANDIDATES[name] for name in names})
    monkeypatch.setattr(run, "measure", quadratic)
    settings = Settings(
        ("relative",), (32,), ("yes",), ("training",), (8,), (1,), device="cpu", seconds=1e-3, max_length=1.1
    )
    results = run.Benchmark(settings, tmp_path, Silent()).run()
    _, plain, flex, strided = results.reaches
    assert plain.longest is None
    assert plain.reason == "with relative keys it is one of the four arrangements"
    assert flex.reason == "FlexAttention has no backward on a CPU"
    assert strided.longest.how == "measured"
    assert strided.longest.length == 1024  # squared, KiB: 1 GiB; the next, 1088, takes 1.13
    for text in (shown(results), markdown.text(results)):
        assert "1,024" in text
        assert "1.1 GiB" in text


@pytest.mark.slow
def test_regret_is_that_of_the_backend_that_auto_takes(done):
    results, _ = done
    regrets = results.regrets()
    assert len(regrets) == 20

    def timed(measurement, ratio):
        return replace(measurement, timing=replace(measurement.timing, ratio=Spread(ratio, ratio, ratio)))

    known = [
        timed(m, 3.0 if m.chosen else 1.5)
        for m in results.measurements
        if m.timing and m.candidate.startswith("relattn ")
    ]
    for regret in replace(results, measurements=known).regrets():
        assert (regret.best, regret.regret) == ("native" if regret.workload.training else "dense", 1.0)


@pytest.mark.slow
def test_unsteady_figures_say_so(done):
    results, _ = done
    steady, spread = Spread(2.0, 1.95, 2.05), Spread(2.0, 1.7, 2.3)
    for ratio, sign, cell in ((steady, "2.00  +1.95-2.05 ", "2.00 |"), (spread, "2.00  +1.70-2.30 !", "2.00 ±0.30 |")):
        measured = [replace(m, timing=m.timing and replace(m.timing, ratio=ratio)) for m in of(results, "plain")]
        one = replace(results, measurements=measured)
        assert re.search(sign, shown(one))
        assert cell in markdown.text(one)


@pytest.mark.slow
def test_the_terminal_shows_every_figure_and_every_reason(done):
    results, _ = done
    text = shown(results)
    for m in results.measurements:
        assert m.workload.family_name in text
        if m.timing is not None:
            assert f"{1000 * m.timing.seconds.median:.2f}" in text
    assert "it is one of the four" in text
    assert "out of order" in text
    assert "…" not in text
    worst = max(found.regret for found in results.regrets())
    assert re.search(rf"worst +{re.escape(f'{worst:+.1%}')}", text)


@pytest.mark.slow
def test_the_markdown_has_whole_tables(done):
    results, _ = done
    text = markdown.text(results)
    for paragraph in text.split("\n\n"):
        if paragraph.startswith("|"):
            assert len({line.count("|") for line in paragraph.splitlines()}) == 1
    floor = of(results, FLOOR)[0]
    assert f"| relative, B=1, H=2, D=8 | 32 | {1000 * floor.timing.seconds.median:.2f} ms |" in text
    assert "| wrong |" in text
    assert "broken one" not in text
    assert results.machine["processor"] in text


@pytest.mark.slow
def test_the_pictures_are_drawn(done, tmp_path):
    results, _ = done
    drawn = draw(results, tmp_path)
    assert {path.name for path in drawn} == {
        f"{name}{way}.png" for name in ("relative", "alibi") for way in ("", "-causal")
    }
    for path in drawn:
        assert path.read_bytes().startswith(b"\x89PNG")
        assert path.stat().st_size > 10_000


@pytest.mark.slow
def test_a_spread_is_ordered(done):
    results, _ = done
    for m in results.measurements:
        if m.timing is not None:
            assert 0 < m.timing.seconds.lower <= m.timing.seconds.median <= m.timing.seconds.upper < math.inf
            assert m.timing.pairs >= 15
