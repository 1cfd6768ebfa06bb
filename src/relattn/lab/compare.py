"""The comparison: the same model under several encodings, the same steps and seeds, beside an n-gram."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from accelerate import PartialState
from accelerate.utils import broadcast_object_list

from relattn.lab.budget import affordable_steps, measure
from relattn.lab.checkpoint import MusicCard, save_checkpoint
from relattn.lab.evaluate import Losses, collect_losses, evaluate
from relattn.lab.files import write_json
from relattn.lab.music.data import SPLITS, VOICES, MusicData
from relattn.lab.music.ngram import NGram
from relattn.lab.music.sources import load_music
from relattn.lab.music.tokens import Vocabulary
from relattn.lab.music.windows import Windows, evaluation_lengths, evaluation_windows
from relattn.lab.progress import Progress
from relattn.lab.report import write_report
from relattn.lab.results import FORMAT, losses_record, machine, summarize, versions
from relattn.lab.settings import FILE as SETTINGS_FILE
from relattn.lab.settings import Plan, Settings
from relattn.lab.training import VALIDATIONS, TrainingPlan, train

RESULTS_FILE = "results.json"
REPORT_FILE = "report.html"
RUN_FILE = "result.json"
VALIDATION_TOKENS = 8192
CHECKPOINTS = 20


class Comparison:
    """One comparison in its folder `out`: data, n-gram, plan; `run()` carries it out, skipping what is done already.

    Under `accelerate launch` every process holds one and calls `run()`; the main one evaluates, writes and reports.
    """

    def __init__(self, settings: Settings, out: Path, progress: Progress, plan: Plan | None = None):
        started = time.perf_counter()
        self.settings, self.out, self.progress = settings, out, progress
        self.process = PartialState()
        if settings.batch % self.process.num_processes:
            raise ValueError(
                f"batch: {settings.batch} windows cannot be shared by {self.process.num_processes} processes; "
                "launch a number that divides it"
            )
        self.data = self._load()
        self.vocabulary = Vocabulary.covering(self.data.pieces)
        self.held_out = evaluation_lengths(self.data.test, self.vocabulary, settings.length)
        self.validation = _first(evaluation_windows(self.data.valid, self.vocabulary, settings.length), VALIDATION_TOKENS)
        self.ngram = self._ngram_losses()
        fingerprint = _fingerprint(self.data)
        if plan is not None and plan.data_fingerprint != fingerprint:
            raise ValueError(f"data: {settings.data} is not what the comparison in {out} began with; choose another --out")
        self.plan = plan or Plan(settings, self._steps(started), fingerprint)
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

    def finished(self) -> int:
        """How many runs are done."""
        return sum((self.folder(e, s) / RUN_FILE).is_file() for s in self.settings.seeds for e in self.settings.encodings)

    def _load(self) -> MusicData:
        def show(done: int, total: int) -> None:
            if done <= 1:
                self.progress.begin("reading the chorales", total)
            self.progress.advance(done)

        # the first process fills the cache that the others then read
        with self.process.main_process_first():
            return load_music(self.settings.data, progress=show)

    def _ngram_losses(self) -> dict[int, Losses]:
        self.progress.begin("n-gram", 1)
        ngram = NGram.fit(self.data.train, self.vocabulary)
        pieces = [ngram.losses(piece) for piece in self.data.test]
        self.progress.advance(1)
        losses = {length: _ngram_on(windows, pieces) for length, windows in self.held_out.items()}
        self.progress.say(f"n-gram: {losses[self.settings.length].mean:.3f} nats per token")
        return losses

    def _steps(self, started: float) -> int:
        if self.settings.steps is not None:
            return self.settings.steps
        assert self.settings.minutes is not None
        costs = {}
        self.progress.begin("measuring the speed", len(self.settings.encodings))
        for done, encoding in enumerate(self.settings.encodings, 1):
            costs[encoding] = measure(self.settings, encoding, self.vocabulary, VALIDATIONS, self.validation, self.held_out)
            self.progress.advance(done)
        steps = affordable_steps(self.settings.minutes, time.perf_counter() - started, len(self.settings.seeds), costs)
        # the processes measure different times, but must take the same number of steps
        return broadcast_object_list([steps])[0]

    def _train_and_evaluate(self, encoding: str, seed: int) -> None:
        folder, steps = self.folder(encoding, seed), self.plan.steps
        config = self.settings.model_config(self.vocabulary.size, encoding)
        training = TrainingPlan(
            steps, self.settings.batch, self.settings.learning_rate, save_every=max(1, steps // CHECKPOINTS)
        )
        self.progress.begin(f"{encoding}, seed {seed}", steps)
        trained = train(
            config, training, seed, self.data.train, self.vocabulary, self.validation, folder / "trainer", self.progress.advance
        )
        if self.process.is_main_process:
            save_checkpoint(folder / "model", trained.model, MusicCard(self.settings.data, self.vocabulary.low, self.vocabulary.high))
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
        self.progress.begin(label, sum(int((windows.labels >= 0).sum()) for windows in self.held_out.values()))
        done = 0

        def advance(tokens: int) -> None:
            nonlocal done
            done += tokens
            self.progress.advance(done)

        return {length: evaluate(model, windows, advance) for length, windows in self.held_out.items()}

    def _results(self) -> dict[str, Any]:
        runs = [
            json.loads((self.folder(encoding, seed) / RUN_FILE).read_text())
            for encoding in self.settings.encodings
            for seed in self.settings.seeds
        ]
        lengths = [str(length) for length in self.held_out]
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
            "data": _describe(self.data, self.plan.data_fingerprint),
            "lengths": [int(length) for length in lengths],
            "ngram": {str(length): losses_record(losses) for length, losses in self.ngram.items()},
            "summary": summary,
            "runs": runs,
        }


def start(settings: Settings, out: Path, progress: Progress) -> Comparison:
    """A new comparison in the folder `out`, which must be empty or not there.

    Raises FileExistsError when something is in it.
    """
    if out.is_dir() and any(out.iterdir()):
        holds = "another comparison" if (out / SETTINGS_FILE).is_file() else "files already"
        way_out = "pass --resume to go on with it, or choose another --out" if holds[0] == "a" else "choose another --out"
        raise FileExistsError(f"out: {out} holds {holds}; {way_out}")
    if out.exists() and not out.is_dir():
        raise FileExistsError(f"out: {out} is a file; choose another --out")
    return Comparison(settings, out, progress)


def resume(out: Path, given: dict[str, Any], progress: Progress) -> Comparison:
    """The comparison that was begun in `out`; `given` are settings that must agree with it (see `Plan.load`)."""
    plan = Plan.load(out, given)
    return Comparison(plan.settings, out, progress, plan)


def _ngram_on(windows: Windows, pieces: list[np.ndarray]) -> Losses:
    """The n-gram's losses, one array [4 T] per piece, at the positions of `windows`."""
    losses = np.zeros(windows.labels.shape)
    for row, (piece, first, filled) in enumerate(zip(windows.piece, windows.start, windows.lengths, strict=True)):
        begin = len(VOICES) * first
        losses[row, :filled] = pieces[piece][begin : begin + filled]
    return collect_losses(windows.labels.shape[1], losses, windows.labels)


def _first(windows: Windows, tokens: int) -> Windows:
    """About as many windows as hold `tokens`, spread evenly."""
    rows = np.unique(np.linspace(0, len(windows.lengths) - 1, max(1, tokens // windows.labels.shape[1])).round().astype(int))
    return Windows(*(getattr(windows, name)[rows] for name in ("input_ids", "labels", "lengths", "piece", "start")))


def _fingerprint(data: MusicData) -> str:
    """SHA-256 of all pieces, in their splits and order."""
    digest = hashlib.sha256()
    for split in SPLITS:
        for piece in data.split(split):
            digest.update(f"{split} {len(piece.steps)} ".encode() + piece.steps.tobytes())
    return digest.hexdigest()


def _describe(data: MusicData, fingerprint: str) -> dict[str, Any]:
    described: dict[str, Any] = {"name": data.name, "sha256": fingerprint}
    for split in SPLITS:
        pieces = data.split(split)
        described[split] = {"pieces": len(pieces), "tokens": len(VOICES) * sum(len(piece.steps) for piece in pieces)}
    return described
