"""Sentences about a comparison, made from its figures."""

from __future__ import annotations

from typing import Any

THE_UNIT = "One nat less means that the model gives every token e = 2.72 times the probability, in the geometric mean."


def sentences(results: dict[str, Any]) -> list[str]:
    """What `results` say: against the n-gram, the encodings among themselves, longer windows, and the unit."""
    ranked = sorted(results["summary"], key=lambda encoding: _mean(results, encoding, 0))
    said = [_against_the_ngram(results, ranked)]
    if len(ranked) > 1:
        said.append(_the_lowest(results, ranked))
    return [*said, _longer_windows(results), f"{THE_UNIT} {results['data']['words']['typical']}"]


def _against_the_ngram(results: dict[str, Any], ranked: list[str]) -> str:
    ngram = results["ngram"][str(results["lengths"][0])]["nats"]
    below = [encoding for encoding in ranked if _mean(results, encoding, 0) < ngram]
    if not below:
        return (
            f"No model is below the n-gram's {ngram:.3f} yet: this run is too short to judge encodings by; "
            "give it more minutes."
        )
    if len(below) == len(ranked):
        return f"Every model is below the n-gram's {ngram:.3f}: it has learnt more than local statistics."
    rest = ", ".join(encoding for encoding in ranked if encoding not in below)
    return f"Below the n-gram's {ngram:.3f}: {', '.join(below)}. Not below it, and so hardly to be judged yet: {rest}."


def _the_lowest(results: dict[str, Any], ranked: list[str]) -> str:
    first, second = ranked[:2]
    trained = str(results["lengths"][0])
    gap = _mean(results, second, 0) - _mean(results, first, 0)
    spreads = [results["summary"][encoding][trained]["spread"] for encoding in (first, second)]
    if None in spreads:
        doubt = "With a single seed there is no telling whether that is more than chance."
    elif gap < sum(spreads):
        doubt = "That is within the seeds' spread."
    else:
        doubt = "That is more than the seeds' spread."
    return f"At the trained length {first} is lowest, {gap:.3f} nats below {second}. {doubt}"


def _longer_windows(results: dict[str, Any]) -> str:
    changes = {encoding: _mean(results, encoding, -1) - _mean(results, encoding, 0) for encoding in results["summary"]}
    listed = "; ".join(f"{encoding} {changes[encoding]:+.3f}" for encoding in sorted(changes, key=changes.__getitem__))
    return (
        f"From windows of {results['lengths'][0]} to {results['lengths'][-1]} tokens the loss changes by: {listed}. A "
        "fall means that the model uses what lies further back than it was trained on, a rise that it does not carry "
        "over to longer windows."
    )


def _mean(results: dict[str, Any], encoding: str, place: int) -> float:
    return results["summary"][encoding][str(results["lengths"][place])]["mean"]
