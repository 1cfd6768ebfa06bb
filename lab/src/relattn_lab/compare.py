"""The comparison: the same model under several encodings, the same steps and seeds, beside an n-gram."""

from __future__ import annotations

import shlex
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from relattn.cli.files import PARTIAL_PREFIX
from relattn.cli.machine import machine, versions
from relattn_lab.budget import Cost, affordable_steps, measure, seconds_of
from relattn_lab.config_file import FILE as CONFIG_FILE
from relattn_lab.config_file import write_config
from relattn_lab.continuations import continuations
from relattn_lab.data_parallel import DataParallel
from relattn_lab.evaluate import evaluate
from relattn_lab.experiment import Experiment
from relattn_lab.listen import Tune
from relattn_lab.lock import LOCK
from relattn_lab.losses import Losses
from relattn_lab.processes import Processes
from relattn_lab.report import page
from relattn_lab.results import FORMAT, PACKAGES, losses_record, summarize
from relattn_lab.settings import FILE as SETTINGS_FILE
from relattn_lab.settings import Plan, Settings
from relattn_lab.support.files import check_folder, write_json, write_text
from relattn_lab.support.progress import Progress
from relattn_lab.trainer import VALIDATIONS
from relattn_lab.training import train
from relattn_lab.voices.medium import FourVoices
from relattn_lab.writing import explain_unwritten

RESULTS_FILE = "results.json"
REPORT_FILE = "report.html"


class Comparison(Experiment):
    """One comparison in its folder `out`: dataset and plan; `run()` carries it out, skipping what is done already.

    Where a launcher has started several processes, each holds one and calls `run()`: they train and evaluate together,
    and the main one writes and reports.
    """

    name = "comparison"
    command = shlex.join(["relattn", "compare", "--config", CONFIG_FILE])

    def __init__(
        self, settings: Settings, out: Path, progress: Progress, plan: Plan | None = None, *,
        at_least: bool = False, report_to: tuple[str, ...] = (),
    ):  # fmt: skip
        self.report_to = report_to
        self.settings, self.out, self.progress = settings, out, progress
        self.processes = Processes()
        self.parallel = DataParallel.of(self.processes, settings.batch, settings.context_parallel)
        # the main process fills the cache that the others then read
        fingerprint = self.processes.on_main(lambda: self._load_dataset(plan))
        if not self.processes.is_main:
            self._load_dataset(None)
        if fingerprint != self.dataset.fingerprint:
            raise ValueError(
                f"data: got {settings.data}, which is another in process {self.processes.index} than in the main one; "
                "expected the same; give every machine the same data"
            )
        self.plan = plan or Plan(settings, self._steps(at_least), fingerprint)
        # after the steps: minutes that do not suffice are refused before the n-gram takes its own
        self.baseline = self.processes.on_main(lambda: self.dataset.fit_ngram(self.progress))
        self.processes.on_main(lambda: self._prepare_folder(is_new=plan is None))

    def run(self) -> dict[str, Any]:
        """Train, evaluate and report; returns what `results.json` holds.

        Raises KeyboardInterrupt: on Ctrl-C and SIGTERM, with all finished runs and a checkpoint of the one in work on
        disk; OSError: when something cannot be written; DivergedError: when a run diverges; ElsewhereError: where the
        main process has failed.
        """
        for encoding, seed in self.processes.on_main(self._open):
            self._train_and_evaluate(encoding, seed)
        return self.processes.on_main(self._report)

    def _report(self) -> dict[str, Any]:
        results = self._results()
        text = page(results, self._tunes())
        with explain_unwritten("the report", self.out):
            write_text(self.out / REPORT_FILE, text)
            write_json(self.out / RESULTS_FILE, results)
        return results

    def _tunes(self) -> list[Tune]:
        """What the first seed's models compose of four voices; nothing of other data."""
        if self.dataset.corpus.kind != FourVoices.kind:
            return []
        seed = self.settings.seeds[0]
        models = {encoding: self.folder(encoding, seed) / "model" for encoding in self.settings.encodings}
        return continuations(models, self.settings.data, seed, self.progress)

    def _windows(self) -> dict[str, int]:
        return {str(length): length for length in self.dataset.held_out}

    def _prepare_folder(self, is_new: bool) -> None:
        super()._prepare_folder(is_new)
        if is_new:
            write_config(self.out, self.settings)

    def _steps(self, at_least: bool) -> int:
        """Those that the settings name, or that fit into their minutes.

        at_least: take the fewest steps even where they do not fit.

        Raises ValueError: where they do not fit, unless `at_least`.
        """
        if self.settings.steps is not None:
            return self.settings.steps
        assert self.settings.minutes is not None
        started, costs = time.perf_counter(), {}
        self.progress.begin("measuring the speed", len(self.settings.encodings))
        for done, encoding in enumerate(self.settings.encodings, 1):
            costs[encoding] = measure(self.settings, encoding, self.dataset, VALIDATIONS, self.parallel)
            self.progress.advance(done)
        minutes, spent, seeds = self.settings.minutes, time.perf_counter() - started, len(self.settings.seeds)
        # the processes measure different times, but must take the same number of steps
        return self.processes.on_main(lambda: self._affordable(minutes, spent, seeds, costs, at_least))

    def _affordable(self, minutes: float, spent: float, seeds: int, costs: dict[str, Cost], at_least: bool) -> int:
        steps = affordable_steps(minutes, spent, seeds, costs)
        needed = seconds_of(steps, spent, seeds, costs) / 60.0
        if needed <= minutes:
            return steps
        if not at_least:
            raise ValueError(
                f"minutes: got {minutes:g}; expected about {needed:.1f} here, for the fewest steps, {steps} in every "
                "run, and the evaluations; give more minutes, fewer encodings or seeds or a smaller model, or pass "
                "--at-least to go on all the same"
            )
        self.progress.say(
            f"{minutes:g} minutes do not suffice here: every run takes the fewest steps, {steps}, and all of them "
            f"about {needed:.1f} minutes with their evaluations"
        )
        return steps

    def _train_and_evaluate(self, encoding: str, seed: int) -> None:
        folder, dataset = self.folder(encoding, seed), self.dataset
        config = self.settings.model_config(dataset.vocabulary.size, encoding)
        self.progress.begin(f"{encoding}, seed {seed}", self.plan.steps)
        trained = train(
            config, self._training_plan(), seed, dataset, folder / "trainer", self.progress.advance, self.parallel,
            self.report_to,
        )  # fmt: skip
        self.processes.on_main(lambda: self._save(trained, folder))
        evaluation = self._evaluate(trained.model, f"{encoding}, seed {seed}: evaluation")
        self.processes.on_main(lambda: self._finish(encoding, seed, trained, evaluation, self.processes.count))
        self.progress.say(f"{encoding}, seed {seed}: {evaluation[str(self.settings.length)].mean:.3f} nats per token")

    def _evaluate(self, model, label: str) -> dict[str, Losses]:
        total, done = sum(int((windows.labels >= 0).sum()) for windows in self.dataset.held_out.values()), 0
        self.progress.begin(label, total)

        def advance(tokens: int) -> None:
            nonlocal done
            done = min(done + tokens, total)  # the others' share is a guess
            self.progress.advance(done)

        held_out = self.dataset.held_out.items()
        return {str(length): evaluate(model, windows, advance, self.parallel) for length, windows in held_out}

    def _results(self) -> dict[str, Any]:
        runs = self._done()
        lengths = [str(length) for length in self.dataset.held_out]
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
            "versions": versions(*PACKAGES),
            "machine": machine(),
            "data": self.dataset.describe(),
            "lengths": [int(length) for length in lengths],
            "ngram_validation": self.baseline.validation.mean,
            "ngram": {str(length): losses_record(losses) for length, losses in self.baseline.held_out.items()},
            "summary": summary,
            "runs": runs,
        }


def start(
    settings: Settings, out: Path, progress: Progress, *, at_least: bool = False, report_to: tuple[str, ...] = ()
) -> Comparison:
    """A new comparison in the folder `out`, which must be empty or not there.

    at_least: go on where the minutes do not suffice for the fewest steps. report_to: see `train`.

    Raises FileExistsError: when something is in it; ValueError: when its name is no UTF-8, or the minutes do not
    suffice; and what `Dataset.load`
    raises.
    """
    Processes().on_main(lambda: check_new(out))
    return Comparison(settings, out, progress, at_least=at_least, report_to=report_to)


def check_new(out: Path) -> None:
    """An empty folder, or none yet.

    Raises FileExistsError: when something is in it; ValueError: when its name is no UTF-8.
    """
    check_folder("out", out)
    held = {path.name for path in out.iterdir()} if out.is_dir() else set()
    if SETTINGS_FILE in held:
        raise FileExistsError(
            f"out: got {out}, which holds another comparison; expected a new folder; pass --resume to go on with it, "
            "or choose another --out"
        )
    if any(name != LOCK and not name.startswith(PARTIAL_PREFIX) for name in held):
        raise FileExistsError(f"out: got {out}, which holds files already; expected a new folder; choose another --out")


def resume(out: Path, given: dict[str, Any], progress: Progress, *, report_to: tuple[str, ...] = ()) -> Comparison:
    """The comparison that was begun in `out`; `given` are settings that must agree with it. report_to: see `train`.

    Raises ValueError: when the data have changed, or the record of a finished run is damaged; and what `Plan.load`
    raises.
    """
    plan = Processes().on_main(lambda: _read_plan(out, given))
    return Comparison(plan.settings, out, progress, plan, report_to=report_to)


def _read_plan(out: Path, given: dict[str, Any]) -> Plan:
    check_folder("out", out)
    return Plan.load(out, given)
