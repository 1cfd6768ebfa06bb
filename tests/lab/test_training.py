"""One run: what it learns, and that stopping and going on changes nothing."""

import os
import signal

import numpy as np
import pytest
import torch
from transformers import TrainerCallback, TrainingArguments
from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK, TensorBoardCallback

from relattn_lab import stopping, trainer
from relattn_lab.dataset import Dataset
from relattn_lab.support.progress import Silent
from relattn_lab.training import TrainingPlan, last_checkpoint, train
from relattn_lab.voices.corpus import VoicesCorpus
from relattn_lab.voices.pieces import MusicData, Piece
from tests.lab.small import SMALL, settings, write_data
from tests.lab.voices.synthetic import random_pieces

PLAN = TrainingPlan(steps=9, batch=2, learning_rate=1e-2, save_every=2)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return Dataset.load(str(write_data(tmp_path_factory.mktemp("data") / "small.json")), SMALL["length"], Silent())


def run(dataset, folder, plan=PLAN, seed=0, progress=lambda step, note: None, encoding="relative", dropout=0.2, **told):
    config = settings("data", dropout=dropout).model_config(dataset.vocabulary.size, encoding)
    return train(config, plan, seed, dataset, folder, progress, **told)


def weights(trained):
    return torch.cat([parameter.flatten() for parameter in trained.model.parameters()])


@pytest.mark.slow
def test_a_seed_fixes_a_run(dataset, tmp_path):
    first, again, other = (run(dataset, tmp_path / name, seed=seed) for name, seed in (("a", 5), ("b", 5), ("c", 6)))
    assert torch.equal(weights(first), weights(again))
    assert first.training_curve == again.training_curve
    assert first.validation_curve == again.validation_curve
    assert not torch.equal(weights(first), weights(other))


@pytest.mark.slow
def test_a_trained_model_generates_with_its_cache(dataset, tmp_path):
    assert run(dataset, tmp_path).model.config.use_cache is True


@pytest.mark.slow
@pytest.mark.parametrize("stop", [3, 4])
def test_an_interrupted_run_goes_on_at_the_exact_place(dataset, tmp_path, stop):
    def interrupt(step, note):
        if step == stop:
            os.kill(os.getpid(), signal.SIGINT)

    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        run(dataset, tmp_path / "stopped", progress=interrupt)
    assert last_checkpoint(tmp_path / "stopped").name == f"checkpoint-{stop}"
    assert signal.getsignal(signal.SIGINT) is handler
    steps = []
    resumed = run(dataset, tmp_path / "stopped", progress=lambda step, note: steps.append(step))
    whole = run(dataset, tmp_path / "whole")
    assert steps == list(range(stop + 1, 10))
    assert torch.equal(weights(resumed), weights(whole))
    assert resumed.training_curve == whole.training_curve
    assert resumed.validation_curve == whole.validation_curve


LONG = TrainingPlan(steps=132, batch=1, learning_rate=1e-3, save_every=60)
"""An entry of its curve is the mean of two steps."""


@pytest.fixture(scope="module")
def long_run(dataset, tmp_path_factory):
    return run(dataset, tmp_path_factory.mktemp("long"), LONG)


@pytest.mark.slow
@pytest.mark.parametrize("stop", [1, 130, 131])
def test_a_run_stopped_within_an_entry_of_its_curve_makes_the_same_entry(dataset, long_run, tmp_path, stop):
    stopped = []

    def terminate(step, note):
        if step == stop and not stopped:
            stopped.append(step)
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(KeyboardInterrupt):
        run(dataset, tmp_path, LONG, progress=terminate)
    resumed = run(dataset, tmp_path, LONG)
    assert len(long_run.training_curve) == 66
    assert resumed.training_curve == long_run.training_curve
    assert torch.equal(weights(resumed), weights(long_run))


@pytest.mark.slow
def test_an_entry_of_the_curve_is_the_mean_of_its_steps(dataset, tmp_path, monkeypatch):
    losses = []
    check = trainer._check_finite

    def remembering(loss, config, seed, step):
        losses.append((step, loss))
        check(loss, config, seed, step)

    monkeypatch.setattr(trainer, "_check_finite", remembering)
    found = run(dataset, tmp_path, TrainingPlan(steps=125, batch=1, learning_rate=1e-3))
    monkeypatch.undo()
    by_step = dict(losses[::-1])  # of each step the first: the validation's comes after
    expected = [(end, (by_step[end - 1] + by_step[end]) / 2) for end in range(2, 126, 2)] + [(125, by_step[125])]
    assert np.array(found.training_curve) == pytest.approx(np.array(expected), rel=1e-12)


def test_a_second_interrupt_does_not_wait(dataset, tmp_path, monkeypatch):
    monkeypatch.setattr(stopping, "ECHO", 0.0)

    def interrupt_twice(step, note):
        if step == 3:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run(dataset, tmp_path, progress=interrupt_twice)
    assert last_checkpoint(tmp_path).name == "checkpoint-2"


def test_a_signal_that_the_process_ignores_stays_ignored(dataset, tmp_path):
    def interrupt(step, note):
        os.kill(os.getpid(), signal.SIGINT)

    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        run(dataset, tmp_path, progress=interrupt)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, handler)


def test_a_finished_run_is_not_trained_again(dataset, tmp_path):
    whole = run(dataset, tmp_path)
    steps = []
    again = run(dataset, tmp_path, progress=lambda step, note: steps.append(step))
    assert steps == []
    assert again.seconds_per_step is None
    assert torch.equal(weights(again), weights(whole))
    assert again.validation_curve == whole.validation_curve


def test_a_checkpoint_that_was_cut_off_is_passed_over(dataset, tmp_path):
    run(dataset, tmp_path)
    assert last_checkpoint(tmp_path).name == "checkpoint-9"
    (tmp_path / "checkpoint-11").mkdir()
    (tmp_path / "checkpoint-12").mkdir()
    (tmp_path / "checkpoint-12" / "trainer_state.json").write_text('{"global_step": 12, "log_hi')
    assert last_checkpoint(tmp_path).name == "checkpoint-9"
    assert last_checkpoint(tmp_path / "nowhere") is None


def test_several_gpus_in_one_process_are_refused(dataset, tmp_path, monkeypatch):
    monkeypatch.setattr(TrainingArguments, "n_gpu", property(lambda arguments: 2))
    with pytest.raises(ValueError, match=r"devices: got 2 GPUs in one process; expected one .* `accelerate launch`"):
        run(dataset, tmp_path)


@pytest.mark.parametrize(("steps", "ended"), [(24, 2), (36, 3)])
def test_a_run_that_diverges_ends_at_once(dataset, tmp_path, steps, ended):
    # The rate of the first update is 0, the second throws the weights out of float32's range: seen by the validation
    # after every second step of 24, and by the next step where the validation comes after every third one of 36.
    plan = TrainingPlan(steps=steps, batch=2, learning_rate=1e37, save_every=2)
    seen = []
    with pytest.raises(ValueError) as caught:
        run(dataset, tmp_path, plan, seed=4, progress=lambda step, note: seen.append(step))
    assert str(caught.value) == (
        f"relative, seed 4: got a loss of nan at step {ended}; expected a finite one; the run has diverged: "
        "compare with "
        "a lower learning rate"
    )
    assert len(seen) == ended - 1


@pytest.mark.slow
def test_curves_end_with_the_run(dataset, tmp_path):
    trained = run(dataset, tmp_path)
    assert trained.validation_curve[-1][0] == trained.training_curve[-1][0] == PLAN.steps
    assert trained.seconds_per_step > 0


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["relative", "sinusoid"])
def test_it_learns_what_can_be_learnt(tmp_path, encoding):
    # each voice holds one pitch: after the first steps of a window nothing is left to guess
    pieces = tuple(
        Piece(piece.name, piece.steps[:1].repeat(12, 0)) for piece in random_pieces(0, [1] * 12, silence=0.0)
    )
    data = MusicData("held", pieces[:8], pieces[8:10], pieces[10:])
    dataset = Dataset.of("held", VoicesCorpus(data), SMALL["length"])
    plan = TrainingPlan(steps=150, batch=8, learning_rate=1e-2)
    trained = run(dataset, tmp_path, plan, encoding=encoding, dropout=0.0)
    first, last = trained.training_curve[0][1], trained.training_curve[-1][1]
    assert last < 0.5 * first


def test_who_is_asked_to_report_hears_both_curves(dataset, tmp_path, monkeypatch):
    """Handed to the Trainer, which makes its callbacks by their names; here one of them is a recorder."""
    heard = []

    class Recording(TrainerCallback):
        def on_log(self, args, state, control, logs=None, **kwargs):
            heard.append((state.global_step, dict(logs), args.run_name))

    monkeypatch.setitem(INTEGRATION_TO_CALLBACK, "wandb", Recording)
    trained = run(dataset, tmp_path, seed=3, report_to=("wandb",))
    for curve, points in (("training_loss", trained.training_curve), ("validation_loss", trained.validation_curve)):
        assert [(step, logs[curve]) for step, logs, _ in heard if curve in logs] == points
    assert {name for _, _, name in heard} == {"relative-seed3"}


def test_tensorboard_files_outlive_the_checkpoints(dataset, tmp_path, monkeypatch):
    folders = []

    class Recording(TensorBoardCallback):
        def __init__(self):
            self.logging_dir, self.tb_writer = None, None

        def on_train_begin(self, *arguments, **kwargs):
            folders.append(self.logging_dir)

        def on_log(self, *arguments, **kwargs): ...

    monkeypatch.setitem(INTEGRATION_TO_CALLBACK, "tensorboard", Recording)
    run(dataset, tmp_path / "trainer", report_to=("tensorboard",))
    assert folders == [str(tmp_path / "tensorboard")]
