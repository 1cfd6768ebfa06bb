"""Runs in a folder, one for every encoding and seed: what comparing and reproducing have in common."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from relattn_lab.card import model_card
from relattn_lab.checkpoint import save_checkpoint
from relattn_lab.dataset import Baseline, Dataset
from relattn_lab.losses import Losses
from relattn_lab.records import FILE as RECORD_FILE
from relattn_lab.records import read_record
from relattn_lab.results import losses_record
from relattn_lab.settings import Plan, Settings
from relattn_lab.support.files import remove_drafts, write_json
from relattn_lab.support.progress import Progress
from relattn_lab.training import Trained, TrainingPlan, kept_steps
from relattn_lab.writing import explain_unwritten

CHECKPOINTS = 20


class Experiment:
    """Runs of `settings` on `dataset` in the folder `out`, as `plan` fixed them before the first run.

    name: what messages call it. command: what goes on a model's card.
    """

    name: ClassVar[str]
    command: ClassVar[str]

    settings: Settings
    out: Path
    progress: Progress
    dataset: Dataset
    baseline: Baseline
    plan: Plan

    def folder(self, encoding: str, seed: int) -> Path:
        """Where a run keeps its model and its result."""
        return self.out / "runs" / f"{encoding}-seed{seed}"

    @property
    def count(self) -> int:
        """How many runs there are in all."""
        return len(self._runs())

    def finished(self) -> int:
        """How many runs are done."""
        return self.count - len(self._open())

    def kept(self) -> str:
        """What is kept, in words: finished runs, and the steps of others."""
        begun = [
            f"{steps} of the {self.plan.steps} steps of {encoding}, seed {seed}"
            for encoding, seed in self._open()
            if (steps := kept_steps(self.folder(encoding, seed) / "trainer"))
        ]
        return ", and ".join([f"{self.finished()} of {self.count} runs are done", *begun])

    def _runs(self) -> list[tuple[str, int]]:
        return [(encoding, seed) for seed in self.settings.seeds for encoding in self.settings.encodings]

    def _open(self) -> list[tuple[str, int]]:
        return [(encoding, seed) for encoding, seed in self._runs() if not self._is_done(encoding, seed)]

    def _is_done(self, encoding: str, seed: int) -> bool:
        return (self.folder(encoding, seed) / RECORD_FILE).is_file()

    def _load_dataset(self, plan: Plan | None) -> str:
        """Of these settings; returns its fingerprint, which is the plan's.

        Raises ValueError: when the data differ from the plan's.
        """
        settings = self.settings
        self.dataset = Dataset.load(settings.data, settings.length, self.progress, settings.skip_bad)
        if plan is not None and plan.data_fingerprint != self.dataset.fingerprint:
            raise ValueError(
                f"data: got {self.settings.data}, which has changed; expected what the {self.name} in {self.out} began "
                "with; bring it back, or choose another --out"
            )
        return self.dataset.fingerprint

    def _prepare_folder(self, is_new: bool) -> None:
        """Write the plan of a new experiment.

        Read the finished runs, so that damaged files are reported at the start.
        """
        self.out.mkdir(parents=True, exist_ok=True)
        remove_drafts(self.out)
        if is_new:
            self.plan.save(self.out)
        for encoding, seed in self._runs():
            if self._is_done(encoding, seed):
                self._record(encoding, seed)
                shutil.rmtree(self.folder(encoding, seed) / "trainer", ignore_errors=True)

    def _windows(self) -> dict[str, int]:
        """The length of the windows of every evaluation, by its name."""
        raise NotImplementedError

    def _record(self, encoding: str, seed: int) -> dict[str, Any]:
        return read_record(self.folder(encoding, seed) / RECORD_FILE, encoding, seed, self.plan.steps, self._windows())

    def _done(self) -> list[dict[str, Any]]:
        """The records of the runs that are done, encoding by encoding."""
        return [
            self._record(encoding, seed)
            for encoding in self.settings.encodings
            for seed in self.settings.seeds
            if self._is_done(encoding, seed)
        ]

    def _training_plan(self) -> TrainingPlan:
        settings, steps = self.settings, self.plan.steps
        return TrainingPlan(steps, settings.batch, settings.learning_rate, save_every=max(1, steps // CHECKPOINTS))

    def _save(self, trained: Trained, folder: Path) -> None:
        with explain_unwritten("the trained model", folder):
            loss = trained.validation_curve[-1][1]
            told = model_card(trained.model, self.dataset.corpus.name, self.plan.steps, loss, self.command)
            save_checkpoint(folder / "model", trained.model, self.dataset.card, told)

    def _finish(
        self, encoding: str, seed: int, trained: Trained, evaluation: Mapping[str, Losses], processes: int
    ) -> None:
        """Write the record of a run. A run counts as done when its record exists."""
        folder = self.folder(encoding, seed)
        record = {
            "encoding": encoding,
            "seed": seed,
            "steps": self.plan.steps,
            "processes": processes,
            "parameters": trained.model.num_parameters(),
            "seconds_per_step": trained.seconds_per_step,
            "training": trained.training_curve,
            "validation": trained.validation_curve,
            "evaluation": {name: losses_record(losses) for name, losses in evaluation.items()},
        }
        with explain_unwritten("the run's figures", folder):
            write_json(folder / RECORD_FILE, record)
        shutil.rmtree(folder / "trainer")
