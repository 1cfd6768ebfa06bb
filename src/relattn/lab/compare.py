"""The comparison: the same model under several encodings, the same steps and seeds, beside an n-gram."""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from accelerate import PartialState
from accelerate.utils import broadcast_object_list

from relattn.lab.budget import affordable_steps, measure, seconds_of
from relattn.lab.checkpoint import save_checkpoint
from relattn.lab.evaluate import evaluate
from relattn.lab.files import write_json
from relattn.lab.losses import Losses
from relattn.lab.material import Material
from relattn.lab.progress import Progress
from relattn.lab.report import write_report
from relattn.lab.results import FORMAT, losses_record, machine, summarize, versions
from relattn.lab.settings import FILE as SETTINGS_FILE
from relattn.lab.settings import Plan, Settings
from relattn.lab.training import VALIDATIONS, TrainingPlan, train

RESULTS_FILE = "results.json"
REPORT_FILE = "report.html"
RUN_FILE = "result.json"
CHECKPOINTS = 20


class Comparison:
    """One comparison in its folder `out`: material and plan; `run()` carries it out, skipping what is done already.

    Under `accelerate launch` every process holds one and calls `run()`; the main one evaluates, writes and reports.
    """

    def __init__(self, settings: Settings, out: Path, progress: Progress, plan: Plan | None = None):
        self.settings, self.out, self.progress = settings, out, progress
        self.process = PartialState()
        if settings.batch % self.process.num_processes:
            raise ValueError(
                f"batch: {settings.batch} windows cannot be shared by {self.process.num_processes} processes; "
                "launch a number that divides it"
            )
        # the first process fills the cache that the others then read
        with self.process.main_process_first():
            self.material = Material.load(settings.data, settings.length, progress)
        if plan is not None and plan.data_fingerprint != self.material.fingerprint:
            raise ValueError(
                f"data: {settings.data} is not what the comparison in {out} began with; choose another --out"
            )
        self.plan = plan or Plan(settings, self._steps(), self.material.fingerprint)
        if self.process.is_main_process:
            out.mkdir(parents=True, exist_ok=True)
            self.plan.save(out)
        self.process.wait_for_everyone()

    def run(self) -> dict[str, Any] | None:
        """Train, evaluate and report; returns what `results.json` holds, in the main process.

        Raises KeyboardInterrupt on Ctrl-C, with all finished runs and a checkpoint of the one in work on disk.
        """
        for seed in self.settings.seeds:
            for encoding in self.settings.encodings:
                if not (self.folder(encoding, seed) / RUN_FILE).is_file():
                    self._train_and_evaluate(encoding, seed)
        if not self.process.is_main_process:
            return None
        results = self._results()
        write_report(self.out / REPORT_FILE, results)
        write_json(self.out / RESULTS_FILE, results)
        return results

    def folder(self, encoding: str, seed: int) -> Path:
        """Where a run keeps its model and its result."""
        return self.out / "runs" / f"{encoding}-seed{seed}"

    @property
    def count(self) -> int:
        """How many runs there are in all."""
        return len(self.settings.encodings) * len(self.settings.seeds)

    def finished(self) -> int:
        """How many runs are done."""
        return sum(
            (self.folder(e, s) / RUN_FILE).is_file() for s in self.settings.seeds for e in self.settings.encodings
        )

    def _steps(self) -> int:
        if self.settings.steps is not None:
            return self.settings.steps
        assert self.settings.minutes is not None
        started, costs = time.perf_counter(), {}
        self.progress.begin("measuring the speed", len(self.settings.encodings))
        for done, encoding in enumerate(self.settings.encodings, 1):
            costs[encoding] = measure(self.settings, encoding, self.material, VALIDATIONS)
            self.progress.advance(done)
        minutes, spent, seeds = self.settings.minutes, time.perf_counter() - started, len(self.settings.seeds)
        steps = affordable_steps(minutes, spent, seeds, costs)
        needed = seconds_of(steps, spent, seeds, costs) / 60.0
        if needed > minutes:
            self.progress.say(
                f"{minutes:g} minutes do not suffice here: every run takes the fewest steps, {steps}, and all of them "
                f"about {needed:.1f} minutes with their evaluations"
            )
        # the processes measure different times, but must take the same number of steps
        return broadcast_object_list([steps])[0]

    def _train_and_evaluate(self, encoding: str, seed: int) -> None:
        folder, steps, material = self.folder(encoding, seed), self.plan.steps, self.material
        config = self.settings.model_config(material.vocabulary.size, encoding)
        training = TrainingPlan(
            steps, self.settings.batch, self.settings.learning_rate, save_every=max(1, steps // CHECKPOINTS)
        )
        self.progress.begin(f"{encoding}, seed {seed}", steps)
        trained = train(config, training, seed, material, folder / "trainer", self.progress.advance)
        if self.process.is_main_process:
            save_checkpoint(folder / "model", trained.model, material.card)
            evaluation = self._evaluate(trained.model, f"{encoding}, seed {seed}: evaluation")
            record = {
                "encoding": encoding,
                "seed": seed,
                "steps": steps,
                "parameters": trained.model.num_parameters(),
                "seconds_per_step": trained.seconds_per_step,
                "training": trained.training_curve,
                "validation": trained.validation_curve,
                "evaluation": {length: losses_record(losses) for length, losses in evaluation.items()},
            }
            write_json(folder / RUN_FILE, record)
            shutil.rmtree(folder / "trainer")
            self.progress.say(f"{encoding}, seed {seed}: {evaluation[self.settings.length].mean:.3f} nats per token")
        self.process.wait_for_everyone()

    def _evaluate(self, model, label: str) -> dict[int, Losses]:
        self.progress.begin(label, sum(int((windows.labels >= 0).sum()) for windows in self.material.held_out.values()))
        done = 0

        def advance(tokens: int) -> None:
            nonlocal done
            done += tokens
            self.progress.advance(done)

        return {length: evaluate(model, windows, advance) for length, windows in self.material.held_out.items()}

    def _results(self) -> dict[str, Any]:
        runs = [
            json.loads((self.folder(encoding, seed) / RUN_FILE).read_text())
            for encoding in self.settings.encodings
            for seed in self.settings.seeds
        ]
        lengths = [str(length) for length in self.material.held_out]
        summary = {
            encoding: {
                length: asdict(
                    summarize([run["evaluation"][length]["nats"] for run in runs if run["encoding"] == encoding])
                )
                for length in lengths
            }
            for encoding in self.settings.encodings
        }
        return {
            "format": FORMAT,
            "settings": {**asdict(self.settings), "steps_taken": self.plan.steps},
            "versions": versions(),
            "machine": machine(),
            "data": self.material.describe(),
            "lengths": [int(length) for length in lengths],
            "ngram_validation": self.material.ngram_validation.mean,
            "ngram": {str(length): losses_record(losses) for length, losses in self.material.ngram.items()},
            "summary": summary,
            "runs": runs,
        }


def start(settings: Settings, out: Path, progress: Progress) -> Comparison:
    """A new comparison in the folder `out`, which must be empty or not there.

    Raises FileExistsError when something is in it.
    """
    if out.is_dir() and any(out.iterdir()):
        if (out / SETTINGS_FILE).is_file():
            raise FileExistsError(
                f"out: {out} holds another comparison; pass --resume to go on with it, or choose another --out"
            )
        raise FileExistsError(f"out: {out} holds files already; choose another --out")
    if out.exists() and not out.is_dir():
        raise FileExistsError(f"out: {out} is a file; choose another --out")
    return Comparison(settings, out, progress)


def resume(out: Path, given: dict[str, Any], progress: Progress) -> Comparison:
    """The comparison that was begun in `out`; `given` are settings that must agree with it (see `Plan.load`)."""
    plan = Plan.load(out, given)
    return Comparison(plan.settings, out, progress, plan)
