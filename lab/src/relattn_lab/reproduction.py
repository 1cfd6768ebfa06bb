"""The experiment of Huang et al. 2018 (Music Transformer, section 4.1) on the JSB chorales, carried out again."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from relattn.cli.machine import machine, versions
from relattn_lab.compare import check_new
from relattn_lab.encodings import ENCODINGS, WITHIN_THE_TRAINED_LENGTH
from relattn_lab.evaluate import evaluate
from relattn_lab.experiment import Experiment
from relattn_lab.reproduction_table import LINES, markdown
from relattn_lab.results import FORMAT, PACKAGES
from relattn_lab.settings import Plan, Settings
from relattn_lab.support.files import check_folder, write_json, write_text
from relattn_lab.support.progress import Progress
from relattn_lab.training import train
from relattn_lab.voices.corpus import VoicesCorpus
from relattn_lab.voices.cutting import evaluation_windows
from relattn_lab.voices.sources import in_four_voices
from relattn_lab.windows import Windows
from relattn_lab.writing import explain_unwritten

SPLITS = ("valid", "test")
"""Those that are evaluated, whole."""
RESULTS_FILE, TABLE_FILE = "results.json", "table.md"


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

    def __post_init__(self) -> None:
        if not in_four_voices(str(self.data)):
            raise ValueError(
                f"data: got {self.data}; expected music in four voices, for the experiment is on the JSB chorales: "
                "a .json file in their format"
            )
        super().__post_init__()
        if self.steps is None:
            raise ValueError("steps: got none; expected the steps of every run")
        if self.length % 8:
            raise ValueError(f"length: got {self.length}; expected a multiple of 8 (half a window in whole steps)")


class Reproduction(Experiment):
    """The experiment in its folder `out`: `run()` carries it out, and skips what is done already."""

    name = "experiment"
    command = "relattn-lab reproduce jsb"

    def __init__(self, settings: Settings, out: Path, progress: Progress, plan: Plan | None = None):
        self.settings, self.out, self.progress = settings, out, progress
        fingerprint = self._load_dataset(plan)
        self.baseline = self.dataset.fit_ngram(progress)
        corpus = self.dataset.corpus
        assert isinstance(corpus, VoicesCorpus)
        self.held_out: dict[str, Windows] = {
            split: evaluation_windows(
                corpus.data.split(split), corpus.vocabulary, settings.length, context=settings.length // 2
            )
            for split in SPLITS
        }
        assert settings.steps is not None
        self.plan = plan or Plan(settings, settings.steps, fingerprint)
        self._prepare_folder(is_new=plan is None)

    def run(self) -> dict[str, Any]:
        """Train and evaluate every row under every seed; returns what `results.json` holds.

        The table is written anew after every run, of those that are done.

        Raises KeyboardInterrupt: on Ctrl-C and SIGTERM, with all finished runs and a checkpoint of the one in work on
        disk; OSError: when something cannot be written; DivergedError: when a run diverges.
        """
        results = self._write()
        for encoding, seed in self._open():
            self._train_and_evaluate(encoding, seed)
            results = self._write()
        return results

    def _windows(self) -> dict[str, int]:
        return dict.fromkeys(SPLITS, self.settings.length)

    def _train_and_evaluate(self, encoding: str, seed: int) -> None:
        folder, dataset = self.folder(encoding, seed), self.dataset
        config = self.settings.model_config(dataset.vocabulary.size, encoding)
        self.progress.begin(f"{encoding}, seed {seed}", self.plan.steps)
        trained = train(config, self._training_plan(), seed, dataset, folder / "trainer", self.progress.advance)
        self._save(trained, folder)
        evaluation = {}
        for split, windows in self.held_out.items():
            self.progress.begin(f"{encoding}, seed {seed}: {split}", int((windows.labels >= 0).sum()))
            evaluation[split] = evaluate(trained.model, windows)
        self._finish(encoding, seed, trained, evaluation, processes=1)
        nats = ", ".join(f"{split} {losses.mean:.4f}" for split, losses in evaluation.items())
        self.progress.say(f"{encoding}, seed {seed}: {nats} nats per token")

    def _write(self) -> dict[str, Any]:
        """`results.json` and `table.md` of the runs that are done."""
        results = {
            "format": FORMAT,
            "settings": {**asdict(self.settings), "data": self.dataset.corpus.name},
            "versions": versions(*PACKAGES),
            "machine": machine(),
            "data": self.dataset.describe(),
            "ngram": {split: self.baseline.whole[split] for split in SPLITS},
            "runs": self._done(),
        }
        with explain_unwritten("the table", self.out):
            write_text(self.out / TABLE_FILE, markdown(results))
            write_json(self.out / RESULTS_FILE, results)
        return results


def start(given: dict[str, Any], out: Path, progress: Progress) -> Reproduction:
    """A new experiment in the folder `out`, which must be empty or not there.

    Raises FileExistsError: when something is in it; ValueError: for a choice that cannot be carried out; and what
    `Dataset.load` raises.
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
