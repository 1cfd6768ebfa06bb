"""The table of the reproduced experiment: what the paper reports, what was measured, and what the differences say."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

from relattn_lab.results import summarize

OVERFITTED = 0.01
"""A run whose validation loss ends so much above its lowest, in nats, is said to overfit."""


@dataclass(frozen=True)
class Line:
    """A row of the table. reported: the paper's note-wise validation loss in nats, where it has such a row."""

    encoding: str
    words: str
    reported: float | None = None


LINES = (
    Line("sinusoid", "baseline: sinusoids added", 0.417),
    Line("sinusoid+voice", "sinusoids and voice labels concatenated", 0.370),
    Line("relative", "relative attention", 0.357),
    Line("relative+pitch+time", "relative attention, with pitch and time", 0.335),
    Line("rope", "rotary"),
    Line("t5", "T5's bias"),
    Line("alibi", "ALiBi"),
    Line("key-query", "relative keys and queries"),
)
PAIRS = (("relative", "sinusoid"), ("relative+pitch+time", "relative"))
"""The order that the paper found: the first of each pair lies below the second."""
SEEDS = 3
GOAL = 0.357
MOONSHOT = 0.335


@dataclass(frozen=True)
class Difference:
    """The losses of `first` less those of `second` on validation, paired by seed, and their standard error."""

    first: str
    second: str
    by_seed: tuple[float, ...]

    @property
    def mean(self) -> float:
        """The mean over seeds."""
        return statistics.fmean(self.by_seed)

    @property
    def standard_error(self) -> float | None:
        """Of the mean; None with a single seed."""
        return statistics.stdev(self.by_seed) / len(self.by_seed) ** 0.5 if len(self.by_seed) > 1 else None

    @property
    def reproduced(self) -> bool:
        """Whether there are three seeds, all say that `first` is lower, and the mean is over twice its error."""
        error = self.standard_error
        return len(self.by_seed) >= SEEDS and max(self.by_seed) < 0 and error is not None and -self.mean > 2 * error


def differences(results: dict[str, Any]) -> list[Difference]:
    """Those of `PAIRS` that have seeds in common."""
    losses = _validation(results)
    found = []
    for first, second in PAIRS:
        seeds = [seed for seed in losses.get(first, {}) if seed in losses.get(second, {})]
        if seeds:
            found.append(Difference(first, second, tuple(losses[first][seed] - losses[second][seed] for seed in seeds)))
    return found


def markdown(results: dict[str, Any]) -> str:
    """The table and what it says, of the runs that are done."""
    losses = _validation(results)
    lines = [
        "| | encoding | valid | test | seeds | as reported, valid |",
        "|---|---|---:|---:|---:|---:|",
        f"| n-gram, interpolated | | {results['ngram']['valid']:.4f} | {results['ngram']['test']:.4f} | | |",
    ]
    for line in LINES:
        runs = [run for run in results["runs"] if run["encoding"] == line.encoding]
        if runs:
            cells = [
                summarize([run["evaluation"][split]["nats"] for run in runs]).shown(4) for split in ("valid", "test")
            ]
            reported = "" if line.reported is None else f"{line.reported:.3f}"
            lines.append(f"| {line.words} | `{line.encoding}` | {cells[0]} | {cells[1]} | {len(runs)} | {reported} |")
    said = [_setting(results), *(_told(difference) for difference in differences(results))]
    if losses:
        said.append(_best(losses))
    said += _overfitted(results)
    return "\n".join([*lines, "", *said]) + "\n"


def _setting(results: dict[str, Any]) -> str:
    settings = results["settings"]
    windows = f"windows of {settings['length']} tokens"
    return (
        f"Nats per token on {results['data']['name']}, mean ± standard deviation over seeds. Every token of every "
        f"piece is counted once, in {windows} that overlap by half. Width {settings['width']}, depth "
        f"{settings['depth']}, {settings['heads']} heads, {settings['steps']} steps of {settings['batch']} {windows}, "
        f"transposed at random, dropout {settings['dropout']:g}. As reported: Huang et al. 2018, from a secondary "
        "source."
    )


def _validation(results: dict[str, Any]) -> dict[str, dict[int, float]]:
    """encoding -> seed -> nats."""
    losses: dict[str, dict[int, float]] = {}
    for run in results["runs"]:
        losses.setdefault(run["encoding"], {})[run["seed"]] = run["evaluation"]["valid"]["nats"]
    return losses


def _told(difference: Difference) -> str:
    each = ", ".join(f"{value:+.4f}" for value in difference.by_seed)
    error = difference.standard_error
    doubt = "" if error is None else f", mean {difference.mean:+.4f}, twice its standard error {2 * error:.4f}"
    if len(difference.by_seed) < SEEDS:
        verdict = f"fewer than {SEEDS} seeds do not tell whether the paper's order is reproduced"
    else:
        verdict = f"the paper's order is {'' if difference.reproduced else 'not '}reproduced"
    return f"- {difference.first} less {difference.second}, seed by seed: {each}{doubt}: {verdict}."


def _best(losses: dict[str, dict[int, float]]) -> str:
    means = {encoding: statistics.fmean(by_seed.values()) for encoding, by_seed in losses.items()}
    best = min(means, key=means.__getitem__)
    goals = [
        f"{goal:.3f} is {'reached' if means[best] <= goal else f'missed by {means[best] - goal:.4f}'}"
        for goal in (GOAL, MOONSHOT)
    ]
    return f"- The lowest row is {best}, {means[best]:.4f} on validation: {' and '.join(goals)}."


def _overfitted(results: dict[str, Any]) -> list[str]:
    found = []
    for run in results["runs"]:
        lowest, last = min(loss for _, loss in run["validation"]), run["validation"][-1][1]
        if last > lowest + OVERFITTED:
            found.append(
                f"- {run['encoding']}, seed {run['seed']}, overfits: its validation curve ends {last - lowest:.3f} "
                "above its lowest."
            )
    return found
