"""The table and the picture of `hugging_face.py`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from measure.studies.hugging_face_models import BATCHES, SUBJECTS, Subject
from measure.studies.study import Figures, quartiles, table

PICTURE = "hugging-face.svg"
GIB = 1024


def markdown(has_picture: bool, figures: Mapping[str, Figures]) -> str:
    """The picture, if there is one, and one row for each model, length and kind of call."""
    columns = {"model": "---", "length": "---:", "kind": "---", "memory as it was": "---:", "patched": "---:"}
    rows = []
    for key, found in figures.items():
        subject, length, kind = _split(key)
        time = quartiles(found["ratio"]) if "ratio" in found else ""
        memories = (shown(found[which]) for which in ("original", "patched"))
        rows.append([subject.shown, f"{length:,} {subject.unit}", kind, *memories, time])
    fewest = min((found["pairs"] for found in figures.values() if "pairs" in found), default=0)
    told = f"Every time has at least {fewest} pairs.\n\n" if fewest else ""
    picture = f"![Memory of a training step]({PICTURE})\n\n" if has_picture else ""
    return told + picture + table(columns | {"time, patched / as it was": "---"}, rows)


def _split(key: str) -> tuple[Subject, int, str]:
    name, length, kind = key.split(", ")
    return (SUBJECTS | BATCHES)[name], int(length), kind


def shown(memory: Figures) -> str:
    """MiB or GiB, or why there are none."""
    if "mib" not in memory:
        return f"over {memory['over_gib']} GiB" if "over_gib" in memory else memory["failed"]
    return f"{memory['mib'] / GIB:.2f} GiB" if memory["mib"] >= GIB else f"{memory['mib']} MiB"


def draw(figures: Mapping[str, Figures], folder: Path) -> None:
    """Two bars for each model's training step: as it was and patched."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "relattn"
    from matplotlib import pyplot

    steps = list(longest_steps(figures).items())[::-1]
    figure, axes = pyplot.subplots(figsize=(9, 0.36 * len(steps) + 1.2), layout="constrained")
    for y, (_, entry) in enumerate(steps):
        whole = entry["original"].get("mib", 1024 * entry["original"].get("over_gib", 0)) / GIB
        ours = entry["patched"]["mib"] / GIB
        axes.barh(y + 0.2, whole, 0.38, color="#b8b8b8")
        axes.barh(y - 0.2, ours, 0.38, color="#1f6f8b")
        over = "over " if "over_gib" in entry["original"] else ""
        axes.text(whole, y + 0.2, f" {over}{whole:.2f}", va="center", fontsize=8)
        axes.text(ours, y - 0.2, f" {ours:.2f}", va="center", fontsize=8)
    axes.set_yticks(range(len(steps)), [label(key) for key, _ in steps], fontsize=7)
    axes.set_xscale("log")
    axes.set_xlabel("GiB that a training step of two layers adds (grey: as it was, blue: patched)")
    axes.margins(x=0.12, y=0.01)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.savefig(folder / PICTURE, metadata={"Date": None})
    pyplot.close(figure)


def longest_steps(figures: Mapping[str, Figures]) -> dict[str, Figures]:
    """Each model's training step at the greatest length at which the patched model finishes, if there is one."""
    found = {}
    for key, entry in figures.items():
        name, _, kind = key.split(", ")
        if kind == "training" and "mib" in entry["patched"]:
            found[name] = key
    return {key: figures[key] for key in found.values()}


def label(key: str) -> str:
    """A model and a length."""
    subject, length, _ = _split(key)
    return f"{subject.shown}\n{length:,} {subject.unit}"
