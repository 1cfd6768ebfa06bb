"""The experiment of Huang et al. 2018 (Music Transformer, section 4.1) on the JSB chorales, carried out again."""

from __future__ import annotations

import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from relattn.lab.card import model_card
from relattn.lab.checkpoint import save_checkpoint
from relattn.lab.compare import check_new
from relattn.lab.encodings import ENCODINGS, WITHIN_THE_TRAINED_LENGTH
from relattn.lab.evaluate import evaluate
from relattn.lab.material import Material
from relattn.lab.records import FILE as RECORD_FILE
from relattn.lab.records import read_record
from relattn.lab.reproduction_table import LINES, markdown
from relattn.lab.results import FORMAT, PACKAGES, losses_record
from relattn.lab.settings import Plan, Settings
from relattn.lab.training import Trained, TrainingPlan, train
from relattn.lab.voices.corpus import VoicesCorpus
from relattn.lab.voices.cutting import evaluation_windows
from relattn.lab.windows import Windows
from relattn.lab.writing import kept
from relattn.support.files import check_folder, remove_drafts, write_json, write_text
from relattn.support.machine import machine, versions
from relattn.support.progress import Progress

SPLITS = ("valid", "test")
"""Those that are evaluated, whole."""
RESULTS_FILE, TABLE_FILE = "results.json", "table.md"
CHECKPOINTS = 20
COMMAND = "relattn reproduce jsb"


@dataclass(frozen=True)
class ReproductionSettings(Settings):
    """The choices of the experiment: those of a comparison, on four voices, with the rows of the paper's table.

    A window of `length` tokens is trained on. The evaluation counts every token once, in windows of that length that
    overlap by half: all but those at a piece's beginning have at least `length / 2` tokens before them.

    Raises ValueError: for a choice that cannot be carried out, naming the field.
    """

    KNOWN: ClassVar[tuple[str, ...]] = (*ENCODINGS, *WITHIN_THE_TRAINED_LENGTH)

    encodings: tuple[str, ...] = tuple(line.encoding for line in LINES)
    seeds: tuple[int, ...] = (0, 1, 2)
    minutes: float | None = None
    steps: int | None = 2500
    width: int = 128
    depth: int = 4
    learning_rate: float = 1e-2

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps is None:
            raise ValueError("steps: got none; expected the steps of every run")
        if self.length % 8:
            raise ValueError(f"length: got {self.length}; expected a multiple of 8 (half a window in whole steps)")


class Reproduction:
    """The experiment in its folder `out`: `run()` carries it out, and skips what is done already."""

    def __init__(self, settings: Settings, out: Path, progress: Progress, plan: Plan | None = None):
        self.settings, self.out, self.progress = settings, out, progress
        self.material = Material.load(settings.data, settings.length, progress)
        if plan is not None and plan.data_fingerprint != self.material.fingerprint:
            raise ValueError(
                f"data: got {settings.data}, which has changed; expected what the experiment in {out} began with; "
                "bring it back, or choose another --out"
            )
        corpus = self.material.corpus
        assert isinstance(corpus, VoicesCorpus)
        self.held_out: dict[str, Windows] = {
            split: evaluation_windows(
                corpus.data.split(split), corpus.vocabulary, settings.length, context=settings.length // 2
            )
            for split in SPLITS
        }
        assert settings.steps is not None
        self.plan = plan or Plan(settings, settings.steps, self.material.fingerprint)
        out.mkdir(parents=True, exist_ok=True)
        remove_drafts(out)
        if plan is None:
            self.plan.save(out)

    def run(self) -> dict[str, Any]:
        """Train and evaluate every row under every seed; returns what `results.json` holds.

        The table is written anew after every run, of those that are done.

        Raises KeyboardInterrupt: on Ctrl-C and SIGTERM, with all finished runs and a checkpoint of the one in work on
        disk; OSError: when something cannot be written; DivergedError: when a run diverges.
        """
        self.progress.begin("n-gram on validation and test", 1)
        losses = dict(zip(SPLITS, self.material.corpus.ngram_losses(*SPLITS), strict=True))
        ngram = {
            split: sum(float(piece.sum()) for piece in pieces) / sum(piece.size for piece in pieces)
            for split, pieces in losses.items()
        }
        results = self._write(ngram)
        for seed in self.settings.seeds:
            for encoding in self.settings.encodings:
                if not (self.folder(encoding, seed) / RECORD_FILE).is_file():
                    self._train_and_evaluate(encoding, seed)
                    results = self._write(ngram)
        return results

    def folder(self, encoding: str, seed: int) -> Path:
        """Where a run keeps its model and its result."""
        return self.out / "runs" / f"{encoding}-seed{seed}"

    def _train_and_evaluate(self, encoding: str, seed: int) -> None:
        folder, settings, steps = self.folder(encoding, seed), self.settings, self.plan.steps
        config = settings.model_config(self.material.vocabulary.size, encoding)
        training = TrainingPlan(steps, settings.batch, settings.learning_rate, save_every=max(1, steps // CHECKPOINTS))
        self.progress.begin(f"{encoding}, seed {seed}", steps)
        trained = train(config, training, seed, self.material, folder / "trainer", self.progress.advance)
        with kept("the trained model", folder):
            loss = trained.validation_curve[-1][1]
            told = model_card(trained.model, self.material.corpus.name, steps, loss, COMMAND)
            save_checkpoint(folder / "model", trained.model, self.material.card, told)
        record = self._record(encoding, seed, trained)
        with kept("the run's figures", folder):
            write_json(folder / RECORD_FILE, record)
        shutil.rmtree(folder / "trainer")
        nats = ", ".join(f"{split} {record['evaluation'][split]['nats']:.4f}" for split in SPLITS)
        self.progress.say(f"{encoding}, seed {seed}: {nats} nats per token")

    def _record(self, encoding: str, seed: int, trained: Trained) -> dict[str, Any]:
        evaluation = {}
        for split, windows in self.held_out.items():
            self.progress.begin(f"{encoding}, seed {seed}: {split}", int((windows.labels >= 0).sum()))
            losses = evaluate(trained.model, windows)
            evaluation[split] = losses_record(losses)
        return {
            "encoding": encoding, "seed": seed, "steps": self.plan.steps, "processes": 1,
            "parameters": trained.model.num_parameters(), "seconds_per_step": trained.seconds_per_step,
            "training": trained.training_curve, "validation": trained.validation_curve, "evaluation": evaluation,
        }  # fmt: skip

    def _write(self, ngram: dict[str, float]) -> dict[str, Any]:
        """`results.json` and `table.md` of the runs that are done."""
        runs = [
            read_record(path, encoding, seed, self.plan.steps, dict.fromkeys(SPLITS, self.settings.length))
            for encoding in self.settings.encodings
            for seed in self.settings.seeds
            if (path := self.folder(encoding, seed) / RECORD_FILE).is_file()
        ]
        results = {
            "format": FORMAT,
            "settings": {**asdict(self.settings), "data": self.material.corpus.name},
            "versions": versions(*PACKAGES),
            "machine": machine(),
            "data": self.material.describe(),
            "ngram": ngram,
            "runs": runs,
        }
        with kept("the table", self.out):
            write_text(self.out / TABLE_FILE, markdown(results))
            write_json(self.out / RESULTS_FILE, results)
        return results


def start(given: dict[str, Any], out: Path, progress: Progress) -> Reproduction:
    """A new experiment in the folder `out`, which must be empty or not there.

    Raises FileExistsError: when something is in it; ValueError: for a choice that cannot be carried out; and what
    `Material.load` raises.
    """
    check_new(out)
    return Reproduction(ReproductionSettings.from_dict(given), out, progress)


def resume(out: Path, given: dict[str, Any], progress: Progress) -> Reproduction:
    """The experiment that was begun in `out`; `given` are settings that must agree with it.

    Raises ValueError: when the data have changed, or the record of a finished run is damaged; and what `Plan.load`
    raises.
    """
    check_folder("out", out)
    plan = Plan.load(out, given, ReproductionSettings)
    return Reproduction(plan.settings, out, progress, plan)
