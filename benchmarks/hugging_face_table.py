"""The table and the picture of `benchmarks/hugging_face.py`, from the figures that it keeps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hugging_face_models import SUBJECTS

START, END = "<!-- table -->\n", "<!-- end of table -->"
HEADER = """| model | length | | memory as it was | patched | time, patched / as it was |
|---|---:|---|---:|---:|---|
"""
GIB = 1024


def write(out: Path) -> None:
    """Into README.md, between its two marks, and into memory.svg."""
    entries = json.loads((out / "figures.json").read_text())["entries"]
    entries.sort(key=lambda entry: (list(SUBJECTS).index(entry["model"]), entry["length"], entry["kind"]))
    page = out / "README.md"
    before, _, rest = page.read_text().partition(START)
    after = rest.partition(END)[2]
    page.write_text(before + START + HEADER + "".join(map(row, entries)) + END + after)
    draw(entries, out / "memory.svg")


def row(entry: dict[str, Any]) -> str:
    """A line of the table."""
    subject = SUBJECTS[entry["model"]]
    cells = [subject.shown, f"{entry['length']:,} {subject.unit}", entry["kind"]]
    cells += [shown(entry["original"]), shown(entry["patched"]), ""]
    if "ratio" in entry:
        median, lower, upper = entry["ratio"]
        cells[-1] = f"{median:.2f} [{lower:.2f} {upper:.2f}]"
    return f"| {' | '.join(cells)} |\n"


def shown(memory: dict[str, Any]) -> str:
    """MiB or GiB, or why there are none."""
    if "mib" not in memory:
        return f"over {memory['over_gib']} GiB" if "over_gib" in memory else memory["failed"]
    return f"{memory['mib'] / GIB:.2f} GiB" if memory["mib"] >= GIB else f"{memory['mib']} MiB"


def draw(entries: list[dict[str, Any]], path: Path) -> None:
    """Two bars for each model's training step: as it was and patched."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "relattn"
    from matplotlib import pyplot

    steps = longest_steps(entries)[::-1]
    figure, axes = pyplot.subplots(figsize=(9, 0.36 * len(steps) + 1.2), layout="constrained")
    for y, entry in enumerate(steps):
        whole = entry["original"].get("mib", 1024 * entry["original"].get("over_gib", 0)) / GIB
        ours = entry["patched"]["mib"] / GIB
        axes.barh(y + 0.2, whole, 0.38, color="#b8b8b8")
        axes.barh(y - 0.2, ours, 0.38, color="#1f6f8b")
        over = "over " if "over_gib" in entry["original"] else ""
        axes.text(whole, y + 0.2, f" {over}{whole:.2f}", va="center", fontsize=8)
        axes.text(ours, y - 0.2, f" {ours:.2f}", va="center", fontsize=8)
    axes.set_yticks(range(len(steps)), [label(entry) for entry in steps], fontsize=7)
    axes.set_xscale("log")
    axes.set_xlabel("GiB that a training step of two layers adds (grey: as it was, blue: patched)")
    axes.margins(x=0.12, y=0.01)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def longest_steps(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each model's training step at the greatest length at which the patched model finishes, if there is one."""
    steps = [entry for entry in entries if entry["kind"] == "training" and "mib" in entry["patched"]]
    return list({entry["model"]: entry for entry in steps}.values())


def label(entry: dict[str, Any]) -> str:
    """A model and a length."""
    subject = SUBJECTS[entry["model"]]
    return f"{subject.shown}\n{entry['length']:,} {subject.unit}"
