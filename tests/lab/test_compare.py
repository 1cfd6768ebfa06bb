"""A comparison from start to report, and its refusals."""

import json
import os
import re
import shutil
import signal
import statistics

import numpy as np
import pytest

from relattn.encodings.catalogue import CATALOGUE
from relattn_lab.budget import LEAST_STEPS
from relattn_lab.checkpoint import load_checkpoint
from relattn_lab.compare import resume, start
from relattn_lab.continuations import COMPOSED, GIVEN
from relattn_lab.dataset import Dataset
from relattn_lab.evaluate import evaluate
from relattn_lab.voices.ngram import NGram
from relattn_lab.voices.sources import load_music
from relattn_lab.voices.vocabulary import Vocabulary
from tests.lab.small import SMALL, Recorder, settings, write_data


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compare")
    data = write_data(folder / "small.json")
    comparison = start(settings(data, seeds=(0, 1)), folder / "out", Recorder())
    return comparison, comparison.run()


def copy(comparison, to):
    shutil.copytree(comparison.out, to)
    return to


@pytest.mark.slow
def test_what_is_left_on_disk(done):
    comparison, results = done
    assert {path.name for path in comparison.out.iterdir()} == {
        "config.toml", "report.html", "results.json", "runs", "settings.json",
    }  # fmt: skip
    assert json.loads((comparison.out / "results.json").read_text()) == json.loads(json.dumps(results))
    runs = {path.name for path in (comparison.out / "runs").iterdir()}
    assert runs == {f"{encoding}-seed{seed}" for encoding in ("relative", "none") for seed in (0, 1)}
    for name in runs:
        composed = {"continuation.json"} if name.endswith("-seed0") else set()
        assert {path.name for path in (comparison.out / "runs" / name).iterdir()} == {"model", "result.json"} | composed


def test_results_hold_settings_versions_machine_data_and_every_run(done):
    _comparison, results = done
    assert results["settings"]["steps_taken"] == 6
    assert {"relattn", "torch", "transformers", "python"} <= set(results["versions"])
    assert {"processor", "cores", "accelerators"} <= set(results["machine"])
    assert results["data"]["train"] == {"pieces": 4, "tokens": 4 * (20 + 33 + 24 + 40)}
    assert results["lengths"] == [16, 32, 64]
    assert [(run["encoding"], run["seed"]) for run in results["runs"]] == [
        ("relative", 0), ("relative", 1), ("none", 0), ("none", 1)
    ]  # fmt: skip
    for run in results["runs"]:
        assert run["steps"] == run["training"][-1][0] == run["validation"][-1][0] == 6
        assert run["parameters"] > 1000
        for length, evaluation in run["evaluation"].items():
            assert evaluation["tokens"] == results["data"]["test"]["tokens"] == sum(evaluation["count"])
            assert len(evaluation["by_position"]) == int(length)


def test_the_summary_is_mean_and_standard_deviation_over_seeds(done):
    _, results = done
    for encoding in ("relative", "none"):
        for length in ("16", "32", "64"):
            nats = [run["evaluation"][length]["nats"] for run in results["runs"] if run["encoding"] == encoding]
            assert results["summary"][encoding][length]["mean"] == pytest.approx(statistics.fmean(nats))
            assert results["summary"][encoding][length]["spread"] == pytest.approx(statistics.stdev(nats))


def test_the_figures_are_those_of_the_saved_models(done):
    comparison, results = done
    for run in results["runs"]:
        model, card = load_checkpoint(comparison.folder(run["encoding"], run["seed"]) / "model")
        assert card.data == str((comparison.out.parent / "small.json").resolve())
        for length, windows in comparison.dataset.held_out.items():
            assert evaluate(model, windows).mean == pytest.approx(run["evaluation"][str(length)]["nats"], rel=1e-6)


def test_the_ngram_is_among_the_rows_with_its_own_losses(done):
    comparison, results = done
    data = load_music(comparison.settings.data)
    vocabulary = Vocabulary.covering(data.pieces)
    expected = NGram.fit(data.train, vocabulary).evaluate(data.test)
    for length in ("16", "32", "64"):
        assert results["ngram"][length]["nats"] == pytest.approx(expected)
        assert results["ngram"][length]["tokens"] == results["data"]["test"]["tokens"]
    validation = comparison.dataset.validation
    valid_pieces = [data.valid[piece] for piece in sorted(set(validation.piece.tolist()))]
    assert results["ngram_validation"] == pytest.approx(NGram.fit(data.train, vocabulary).evaluate(valid_pieces))
    # in the longest windows the first piece's losses stand where its tokens do
    losses = [NGram.fit(data.train, vocabulary).losses(piece)[:1] for piece in data.test]
    starts = [losses[piece][0] for piece, first in zip(*windows_of(comparison, 64), strict=True) if first == 0]
    others = [
        NGram.fit(data.train, vocabulary).losses(data.test[piece])[4 * first]
        for piece, first in zip(*windows_of(comparison, 64), strict=True)
        if first
    ]
    assert results["ngram"]["64"]["by_position"][0] == pytest.approx(np.mean(starts + others), abs=1e-5)


def windows_of(comparison, length):
    windows = comparison.dataset.held_out[length]
    return windows.piece.tolist(), windows.start.tolist()


def test_resume_does_only_what_is_missing_and_gives_the_same(done, tmp_path):
    comparison, results = done
    out = copy(comparison, tmp_path / "out")
    shutil.rmtree(out / "runs" / "none-seed0")
    (out / "results.json").unlink()
    recorder = Recorder()
    again = resume(out, {"seeds": (0, 1)}, recorder)
    assert (again.finished(), again.count) == (3, 4)
    repeated = again.run()
    assert [label for label, total in recorder.begun if "seed" in label] == [
        "none, seed 0",
        "none, seed 0: evaluation",
    ]
    assert repeated["summary"] == results["summary"]


@pytest.mark.slow
@pytest.mark.parametrize("label", ["none, seed 0", "none, seed 0: evaluation"])
def test_an_interrupted_comparison_leaves_nothing_that_looks_whole_and_goes_on(done, tmp_path, label):
    comparison, results = done
    stopped = []

    def interrupt(task, done):
        if task == label and not stopped:
            stopped.append(done)
            os.kill(os.getpid(), signal.SIGINT)

    begun = start(comparison.settings, tmp_path / "out", Recorder(interrupt))
    with pytest.raises(KeyboardInterrupt):
        begun.run()
    assert begun.finished() == 1
    assert not (begun.out / "results.json").exists()
    assert not (begun.out / "report.html").exists()
    assert not (begun.out / "runs" / "none-seed0" / "result.json").exists()
    resumed = resume(begun.out, {}, Recorder()).run()
    assert resumed["summary"] == results["summary"]
    assert [run["validation"] for run in resumed["runs"]] == [run["validation"] for run in results["runs"]]


@pytest.mark.slow
def test_pitch_and_time_are_compared_and_gone_on_with(tmp_path):
    stopped, name = [], "relative+pitch+time"

    def interrupt(task, done):
        if task == f"{name}, seed 0" and done == 3 and not stopped:
            stopped.append(done)
            os.kill(os.getpid(), signal.SIGINT)

    chosen = settings(write_data(tmp_path / "small.json"), encodings=("none", name))
    expected = start(chosen, tmp_path / "whole", Recorder()).run()
    begun = start(chosen, tmp_path / "out", Recorder(interrupt))
    with pytest.raises(KeyboardInterrupt):
        begun.run()
    results = resume(begun.out, {}, Recorder()).run()
    assert stopped
    assert results["summary"] == expected["summary"]
    assert [run["training"] for run in results["runs"]] == [run["training"] for run in expected["runs"]]
    report = (begun.out / "report.html").read_text()
    assert f"{name}: {CATALOGUE[name].meaning}, beyond=clamp, max_steps=5" in report
    model, _ = load_checkpoint(begun.folder(name, 0) / "model")
    for length, windows in begun.dataset.held_out.items():
        found = results["summary"][name][str(length)]["mean"]
        assert evaluate(model, windows).mean == pytest.approx(found, rel=1e-6)


def test_a_text_is_refused_before_anything_is_read_or_written(tmp_path):
    data = tmp_path / "words.txt"
    data.write_text("word " * 400)
    with pytest.raises(
        ValueError, match=r"encodings: got 'relative\+pitch\+time' for .*words\.txt, whose tokens have no"
    ):
        settings(data, encodings=("none", "relative+pitch+time"))
    assert start(settings(data, encodings=("none",)), tmp_path / "out", Recorder()).plan.steps == 6


def test_minutes_become_steps_once_and_for_all(done, tmp_path):
    comparison, _ = done
    timed = settings(comparison.settings.data, steps=None, minutes=0.5, encodings=("none",))
    recorder = Recorder()
    begun = start(timed, tmp_path / "out", recorder)
    assert begun.plan.steps >= 1
    assert ("measuring the speed", 1) in recorder.begun
    recorder = Recorder()
    assert resume(tmp_path / "out", {"minutes": 0.5}, recorder).plan.steps == begun.plan.steps
    assert "measuring the speed" not in [label for label, _ in recorder.begun]


@pytest.mark.slow
def test_minutes_that_do_not_suffice_are_said(done, tmp_path):
    comparison, _ = done
    progress = Recorder()
    given = settings(comparison.settings.data, steps=None, minutes=1e-5)
    # the n-gram of large data takes minutes: the refusal comes before it
    with (
        pytest.MonkeyPatch.context() as patch,
        pytest.raises(
            ValueError, match=r"minutes: got 1e-05; expected about \d+\.\d here, for the fewest steps, 20 in e"
        ),
    ):
        patch.delattr(Dataset, "fit_ngram")
        start(given, tmp_path / "out", progress)
    assert not (tmp_path / "out").exists()  # the same command with more minutes works
    late = start(given, tmp_path / "out", progress, at_least=True)
    assert late.plan.steps == LEAST_STEPS
    assert any(
        line.startswith("1e-05 minutes do not suffice here: every run takes the fewest") for line in progress.said
    )


def test_a_folder_that_holds_something_is_refused(done, tmp_path):
    comparison, _ = done
    with pytest.raises(FileExistsError) as caught:
        start(comparison.settings, comparison.out, Recorder())
    assert str(caught.value) == (
        f"out: got {comparison.out}, which holds another comparison; expected a new folder; pass --resume to go "
        "on with "
        "it, or choose another --out"
    )
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(FileExistsError) as caught:
        start(comparison.settings, tmp_path, Recorder())
    assert str(caught.value) == (
        f"out: got {tmp_path}, which holds files already; expected a new folder; choose another --out"
    )
    with pytest.raises(FileExistsError) as caught:
        start(comparison.settings, tmp_path / "letter.txt", Recorder())
    assert str(caught.value) == (
        f"out: got {tmp_path / 'letter.txt'}, which is a file; expected a folder; choose another --out"
    )


def test_data_that_changed_meanwhile(done, tmp_path):
    _comparison, _ = done
    data = write_data(tmp_path / "small.json")
    out = tmp_path / "out"
    start(settings(data), out, Recorder())
    write_data(data, seed=1)
    with pytest.raises(ValueError) as caught:
        resume(out, {}, Recorder())
    assert str(caught.value) == (
        f"data: got {data}, which has changed; expected what the comparison in {out} began with; bring it back, "
        "or choose "
        "another --out"
    )


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"train": [], "valid": [], "test": []}', "expected a list with at least one piece"),
        ('{"train": [[[60, 50', "which is not JSON"),
    ],
)
def test_data_that_are_empty_or_broken(tmp_path, content, said):
    data = tmp_path / "data.json"
    data.write_text(content)
    with pytest.raises(ValueError, match=said):
        start(settings(data), tmp_path / "out", Recorder())
    assert not (tmp_path / "out").exists()


def test_data_that_are_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"data: .*no\.json"):
        start(settings(tmp_path / "no.json"), tmp_path / "out", Recorder())


def tunes_of(folder):
    """The titles and notes of the tunes in a report."""
    (held,) = re.findall(r'class="relattn-tunes">(.*?)</script>', (folder / "report.html").read_text(), re.DOTALL)
    return {tune["title"].partition(", ")[2]: tune for tune in json.loads(held)}


def test_the_report_plays_the_same_opening_under_every_encoding(done):
    comparison, _ = done
    tunes = tunes_of(comparison.out)
    assert list(tunes) == ["continued by relative", "continued by none", "as it was written"]
    given = {tune["given"] for tune in tunes.values()}
    assert given == {SMALL["length"] // GIVEN}
    assert {tune["steps"] for tune in tunes.values()} == {SMALL["length"] // GIVEN + SMALL["length"] // COMPOSED}
    opening = [
        {(step, voice, pitch) for first, end, pitch, voice in tune["notes"] for step in range(first, min(end, *given))}
        for tune in tunes.values()
    ]
    assert opening[0] == opening[1] == opening[2]
    assert tunes["continued by relative"]["attended"]["layers"] == SMALL["depth"]
    assert tunes["as it was written"]["attended"] is None


@pytest.mark.slow
def test_what_was_composed_is_not_composed_again(done):
    comparison, _ = done
    before, recorder = tunes_of(comparison.out), Recorder()
    resume(comparison.out, {}, recorder).run()
    assert "composing" not in [label for label, _ in recorder.begun]
    assert tunes_of(comparison.out) == before
    (comparison.folder("relative", 0) / "continuation.json").write_text("{")
    recorder = Recorder()
    resume(comparison.out, {}, recorder).run()
    assert [label for label, _ in recorder.begun].count("composing") == 1
    assert tunes_of(comparison.out) == before
