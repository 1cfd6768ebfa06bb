"""The results of a benchmark, as data, and the file that keeps them."""

from __future__ import annotations

import datetime
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from measure.check import Check
from measure.longest import Longest
from measure.memory import Memory
from measure.power_law import PowerLaw, fit
from measure.settings import Settings
from relattn.cli.bench.relattn_candidates import BACKEND_OF
from relattn.cli.bench.timing import Timing
from relattn.cli.bench.workload import Workload
from relattn.cli.machine import machine, versions
from relattn_lab.support.files import write_json

FILE = "results.json"
FORMAT = 1
PACKAGES = ("torch", "numpy", "transformers", "x-transformers", "timm", "triton")
"""Those that are measured, or measure."""


@dataclass(frozen=True)
class Measurement:
    """One candidate on one workload. A figure that is None was not taken; `reason` then says why.

    check: the comparison with the truth, None where it was not made. chosen: whether "auto" takes it.
    """

    workload: Workload
    candidate: str
    reason: str | None = None
    check: Check | None = None
    memory: Memory | None = None
    timing: Timing | None = None
    chosen: bool = False

    @property
    def is_given_up(self) -> bool:
        """Whether it was right, and its step could not be carried out."""
        return self.timing is None and self.check is not None and self.check.right

    @property
    def teraflops(self) -> float | None:
        """10^12 operations per second, counted for attention without encoding: `Workload.flops`."""
        return None if self.timing is None else self.workload.flops / self.timing.seconds.median / 1e12

    @property
    def is_wrong(self) -> bool:
        """Whether the check found it wrong."""
        return self.check is not None and not self.check.right

    def record(self) -> dict[str, Any]:
        """As JSON, with the derived figures."""
        beyond = None if self.memory is None else self.memory.beyond
        return asdict(self) | {"teraflops": self.teraflops, "bytes_beyond": beyond}


@dataclass(frozen=True)
class Regret:
    """The time of the backend that "auto" takes divided by that of our best, both as ratios to the floor, minus 1."""

    workload: Workload
    best: str
    regret: float


@dataclass(frozen=True)
class Reach:
    """The longest training step of a candidate; `reason` where there is none. family: the workload at length 1."""

    family: Workload
    candidate: str
    longest: Longest | None
    reason: str | None = None


@dataclass
class Results:
    """Everything measured so far."""

    settings: Settings
    date: str = field(default_factory=lambda: datetime.datetime.now().astimezone().isoformat(timespec="seconds"))
    machine: dict[str, Any] = field(default_factory=machine)
    versions: dict[str, str | None] = field(default_factory=lambda: versions(*PACKAGES))
    measurements: list[Measurement] = field(default_factory=list)
    reaches: list[Reach] = field(default_factory=list)

    def of(self, family: Workload, candidate: str) -> list[Measurement]:
        """A candidate's measurements over the lengths of a family."""
        return [m for m in self.measurements if m.workload.family == family and m.candidate == candidate]

    def families(self) -> list[Workload]:
        """The families that were measured, in order."""
        return list(dict.fromkeys(m.workload.family for m in self.measurements))

    def candidates(self, family: Workload) -> list[str]:
        """The candidates of a family, in order."""
        return list(dict.fromkeys(m.candidate for m in self.measurements if m.workload.family == family))

    def time_law(self, family: Workload, candidate: str) -> PowerLaw | None:
        """Median seconds against the length."""
        found = self.of(family, candidate)
        return fit({m.workload.length: m.timing.seconds.median for m in found if m.timing is not None})

    def memory_law(self, family: Workload, candidate: str) -> PowerLaw | None:
        """Bytes beyond inputs, outputs and gradients against the length."""
        found = self.of(family, candidate)
        return fit({m.workload.length: m.memory.beyond for m in found if m.memory is not None})

    def regrets(self) -> list[Regret]:
        """The regret of every workload on which the backend that "auto" takes was timed."""
        ratios: dict[Workload, dict[str, float]] = {}
        taken: dict[Workload, float] = {}
        for m in self.measurements:
            if m.timing is not None and m.candidate in BACKEND_OF:
                ratios.setdefault(m.workload, {})[BACKEND_OF[m.candidate]] = m.timing.ratio.median
                if m.chosen:
                    taken[m.workload] = m.timing.ratio.median
        found = []
        for workload, ratio in taken.items():
            best = min(ratios[workload], key=ratios[workload].__getitem__)
            found.append(Regret(workload, best, ratio / ratios[workload][best] - 1.0))
        return found

    def record(self) -> dict[str, Any]:
        """As JSON."""
        growth = [
            {
                "family": asdict(family),
                "candidate": candidate,
                "time_exponent": None if time is None else time.exponent,
                "memory_exponent": None if memory is None else memory.exponent,
            }
            for family in self.families()
            for candidate in self.candidates(family)
            for time, memory in [(self.time_law(family, candidate), self.memory_law(family, candidate))]
            if time or memory
        ]
        return {
            "format": FORMAT,
            "date": self.date,
            "settings": asdict(self.settings),
            "machine": self.machine,
            "versions": self.versions,
            "measurements": [measurement.record() for measurement in self.measurements],
            "growth": growth,
            "regret": [asdict(regret) for regret in self.regrets()],
            "max_length": [asdict(reach) for reach in self.reaches],
        }

    def save(self, folder: Path) -> None:
        """Write results.json, completely or not at all."""
        write_json(folder / FILE, self.record())


def reach_title(settings: Settings) -> str:
    """The meaning of the lengths in `Results.reaches`."""
    return (
        f"Longest sequence of which one layer's attention trains in {settings.max_length:g} GiB "
        "(inputs, outputs and gradients counted)"
    )
