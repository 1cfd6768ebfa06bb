"""The benchmark itself: every candidate on every workload, first checked, then measured."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path

from measure.candidates import CANDIDATES, Candidate
from measure.check import Check, check
from measure.longest import longest
from measure.measurements import FILE, Measurement, Reach, Results
from measure.memory import GIB, Memory, OverMemoryError, TooMuchError, available, measure
from measure.resume import resume
from measure.settings import Settings
from relattn.cli.bench.relattn_candidates import BACKEND_OF, chosen_by_auto
from relattn.cli.bench.run import timed
from relattn.cli.bench.workload import TRAINING, Workload
from relattn.cli.files import explain_write_errors
from relattn_lab.support.files import check_folder
from relattn_lab.support.progress import Progress


class Benchmark:
    """Measures the workloads of its settings. `results` and results.json in the folder hold the finished measurements.
    Where the folder holds some already, the others are measured.

    candidates: the names of the measured candidates; all of CANDIDATES if none are named.

    Raises ValueError: when the folder's name is not UTF-8, and for a results.json that is damaged, or was begun with
        other settings, with other candidates, on another machine or with other versions; FileExistsError: when the
        folder is a file.
    """

    def __init__(
        self, settings: Settings, folder: Path, progress: Progress, candidates: Iterable[str] | None = None
    ) -> None:
        self._settings, self._folder, self._progress = settings, folder, progress
        self._candidates = {name: CANDIDATES[name] for name in candidates or CANDIDATES}
        self._checks: dict[tuple[str, Workload], Check | str] = {}
        check_folder("out", folder)
        with explain_write_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        self.results = resume(settings, self._candidates, folder)

    def run(self) -> Results:
        """Measure the grid, then, if wanted, the longest sequences."""
        workloads = list(self._settings.workloads())
        kept = {(m.workload, m.candidate) for m in self.results.measurements}
        missing = [cell for cell in product(workloads, self._candidates) if cell not in kept]
        self._progress.say(self._plan(len(workloads)))
        if kept:
            self._progress.say(f"{self._folder / FILE} holds {len(kept)} measurements; {len(missing)} are missing")
        self._progress.begin("benchmark", len(missing))
        chosen = cache(chosen_by_auto)
        for done, (workload, name) in enumerate(missing):
            self._progress.advance(done, f"{workload}: {name}")
            is_chosen = BACKEND_OF.get(name) == chosen(workload)
            measured = self._measured(name, self._candidates[name], workload)
            self.results.measurements.append(replace(measured, chosen=is_chosen))
            self.results.save(self._folder)
        if self._settings.max_length is not None:
            self._look_for_longest(int(self._settings.max_length * GIB))
        return self.results

    def _plan(self, workloads: int) -> str:
        settings = self._settings
        return (
            f"measuring {', '.join(settings.encodings)} at {', '.join(map(str, settings.lengths))}, "
            f"{' and '.join(settings.modes)}: {workloads} workloads, {len(self._candidates)} candidates for each, some "
            f"{settings.seconds:g} seconds for a candidate"
        )

    def _measured(self, name: str, candidate: Candidate, workload: Workload) -> Measurement:
        refused = candidate.reason(workload) or self._given_up(name, workload)
        if refused:
            return Measurement(workload, name, refused)
        checked = self._checked(name, candidate, workload)
        if isinstance(checked, str):
            return Measurement(workload, name, checked)
        if not checked.right:
            said = f"wrong: {checked.tensor} is off by {checked.error:.1e}, allowed {checked.allowed:.1e}"
            return Measurement(workload, name, said, checked)
        try:
            memory = measure(name, workload, available(workload.device), self._settings.patience)
            timing = timed(candidate, workload, self._settings.seconds)
        except RuntimeError as error:
            return Measurement(workload, name, str(error), checked)
        return Measurement(workload, name, None, checked, memory, timing)

    def _given_up(self, name: str, workload: Workload) -> str | None:
        """Why it is not tried: it was given up at a shorter length."""
        found = self.results.of(workload.family, name)
        shorter = (m for m in found if m.is_given_up and m.workload.length < workload.length)
        return next((f"{m.reason} at L={m.workload.length}" for m in shorter), None)

    def _checked(self, name: str, candidate: Candidate, workload: Workload) -> Check | str:
        """The check at a short length, made once per family; or the candidate's error as a sentence."""
        key = name, workload.family
        if key not in self._checks:
            try:
                self._checks[key] = check(candidate, workload)
            except Exception as error:  # an error of a peer is a finding about the peer
                self._checks[key] = f"fails: {type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        return self._checks[key]

    def _look_for_longest(self, budget: int) -> None:
        kept = {(reach.family, reach.candidate) for reach in self.results.reaches}
        families = self._settings.families((TRAINING,))
        missing = [cell for cell in product(families, self._candidates) if cell not in kept]
        self._progress.begin("longest sequence", len(missing))
        for done, (family, name) in enumerate(missing):
            self._progress.advance(done, f"{family.family_name}: {name}")
            self.results.reaches.append(self._reach(name, self._candidates[name], family, budget))
            self.results.save(self._folder)

    def _reach(self, name: str, candidate: Candidate, family: Workload, budget: int) -> Reach:
        shortest = family.at(min(self._settings.lengths))
        refused = candidate.reason(shortest)
        if refused:
            return Reach(family, name, None, refused)
        checked = self._checked(name, candidate, shortest)
        if isinstance(checked, str) or not checked.right:
            return Reach(family, name, None, "its answer is wrong" if isinstance(checked, Check) else checked)
        limit = min(2 * budget + GIB, available(family.device))  # pages that a limit counts, and a step never touches

        def once(length: int) -> Memory:
            try:
                return measure(name, family.at(length), limit, self._settings.patience)
            except OverMemoryError as error:
                if limit < budget:
                    raise TooMuchError(f"{error}, which is all there is") from None
                raise

        known = {m.workload.length: m.memory for m in self.results.of(family, name) if m.memory is not None}
        try:
            known = known or {shortest.length: once(shortest.length)}
        except RuntimeError as error:
            return Reach(family, name, None, f"{error} at L={shortest.length}")
        found = longest(once, known, budget, self._settings.patience)
        return Reach(family, name, found, None if found else f"L={min(known)} does not fit")
