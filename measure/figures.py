"""What the files under measure/results say, as the pages show it: functions that give the figures of a sentence."""

from __future__ import annotations

import json
import statistics
from functools import cache
from pathlib import Path
from typing import Any

from measure.memory import MIB
from measure.studies.hugging_face_models import SUBJECTS
from measure.studies.hugging_face_table import shown as memory_of
from measure.studies.ratios import medians
from measure.studies.study import Kept, shown

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "measure" / "results"
COLUMNS = ("forward", "training", "forward, causal", "training, causal")
SLOWER = 1.02
PAPER = ("sinusoid", "sinusoid+voice", "relative", "relative+pitch+time")


@cache
def kept(study: str) -> Kept:
    """A study's file, by its place."""
    return Kept.read(RESULTS / f"{study}.json", Path(study).name)


@cache
def document(path: str) -> Any:
    """Any other file of results."""
    return json.loads((RESULTS / path).read_text(encoding="utf-8"))


def speed(encoding: str) -> list[str]:
    """The medians over the lengths: forward, training step, both causal."""
    rows = (medians(kept("encodings").figures[f"{encoding}: {what}"]).values() for what in COLUMNS)
    return [f"{statistics.median(ratios):.2f}" for ratios in rows]


def ratio(study: str, key: str) -> list[str]:
    """One ratio."""
    return [shown(kept(study).figures[key]["ratio"])]


def decoded(length: int, dtype: str) -> tuple[str, str]:
    """The lowest and the highest median of one token, over the encodings."""
    found = [
        medians(figures)[length]
        for key, figures in kept("decoding").figures.items()
        if (", bfloat16" in key) == (dtype == "bfloat16") and not key.startswith("none")
    ]
    return f"{min(found):.2f}", f"{max(found):.2f}"


def decoding() -> list[str]:
    """At 8,192 keys, then at 1,024: float32, then bfloat16."""
    return [figure for length in (8192, 1024) for dtype in ("float32", "bfloat16") for figure in decoded(length, dtype)]


def added(model: str) -> list[str]:
    """What a training step adds as it was and patched."""
    found = kept("hugging-face").figures[f"{model}, training"]
    return [memory_of(found[which]) for which in ("original", "patched")]


def row(model: str, timed: str | None = None) -> list[str]:
    """Memory of a training step, and the patched time of a forward pass over the original's. timed: the shorter length
    that has a time, where this one has none.
    """
    return [*added(model), shown(kept("hugging-face").figures[f"{timed or model}, forward"]["ratio"])]


def wavlm() -> list[str]:
    """The README's sentence."""
    before, after, time = row("wavlm, 3000")
    return [after, before, time]


def all_models() -> list[str]:
    """How many were timed, the lowest and the highest ratio, and the models with a call that takes longer."""
    timed = {key: one["ratio"] for key, one in kept("hugging-face").figures.items() if "ratio" in one}
    medians = [found[0] for found in timed.values()]
    slower: dict[str, list[float]] = {}
    for key, found in timed.items():
        name = key.split(", ")[0]
        if found[0] > max(SLOWER, slower.get(name, [0.0])[0]):
            slower[name] = found
    told = "; ".join(f"{SUBJECTS[name].shown} ({shown(found)})" for name, found in slower.items())
    models = {key.split(", ")[0] for key in timed}
    return [str(len(models)), f"{min(medians):.2f}", f"{max(medians):.2f}", f"{SLOWER:.2f}", told or "none"]


def nats(path: str, encoding: str) -> tuple[float, float]:
    """Mean and standard deviation over seeds, on validation."""
    found = [run["evaluation"]["valid"]["nats"] for run in document(path)["runs"] if run["encoding"] == encoding]
    return statistics.mean(found), statistics.stdev(found)


def paper() -> list[str]:
    """The means of the paper's rows, and of the longer training."""
    runs = [*(("jsb/results.json", encoding) for encoding in PAPER), ("jsb/longer.json", PAPER[-1])]
    return [f"{nats(*run)[0]:.3f}" for run in runs]


def with_spread(path: str, encoding: str) -> list[str]:
    """Mean ± standard deviation."""
    return ["{:.3f} ± {:.3f}".format(*nats(path, encoding))]


def longer_windows() -> list[str]:
    """Shaw, Transformer-XL, and a table with a row for every offset: at 256 tokens and at 1,024, means over seeds."""
    found = []
    for encoding in ("shaw", "transformer-xl", "relative"):
        runs = [run["losses"]["as trained"] for run in document("jsb/lengths.json") if run["encoding"] == encoding]
        found += [f"{statistics.mean(run[length] for run in runs):.3f}" for length in ("256", "1024")]
    return found


def ngram() -> list[str]:
    """On validation."""
    return [f"{document('jsb/results.json')['ngram']['valid']:.3f}"]


def held(what: str) -> list[str]:
    """MiB at both lengths."""
    return [str(kept("memory").figures[f"{what}, L={length}"]["mib"]) for length in (4096, 16384)]


def over_ranks() -> list[str]:
    """MiB of the zigzag ring on two and on four, of one process of native."""
    figures = kept("devices").figures
    found = [figures[f"{world}, zigzag, ring"]["beyond_mib"] for world in (2, 4)]
    alone = figures["1, native"]["beyond_mib"][0]
    return [str(figure) for figure in (min(found[0]), max(found[0]), min(found[1]), max(found[1]), alone)]


def on_grid(study: str, candidate: str, length: int) -> list[str]:
    """Ratio to PyTorch's attention and MiB, forward and training; what was given up says so."""
    times, memories = [], []
    for mode in ("forward", "training"):
        (one,) = (
            one
            for one in document(f"{study}/results.json")["measurements"]
            if (one["candidate"], one["workload"]["length"], one["workload"]["mode"]) == (candidate, length, mode)
        )
        timing, memory = one["timing"], one["memory"]
        ratio = timing and [timing["ratio"][name] for name in ("median", "lower", "upper")]
        times.append(shown(ratio) if ratio else not_timed(one["reason"]))
        memories.append(f"{one['bytes_beyond'] / MIB:,.0f}" if memory else "")
    return times + memories


def beyond(study: str, candidate: str, length: int) -> list[str]:
    """MiB, forward and training."""
    return on_grid(study, candidate, length)[2:]


def not_timed(reason: str) -> str:
    """What a table says in place of a time.

    Raises ValueError: for a reason that the pages do not explain.
    """
    if "no backward" in reason:
        return ""
    if "takes longer than" in reason or "more memory" in reason or " GiB or more" in reason:
        return "gave up"
    raise ValueError(reason)


def rotation(tile: int) -> list[str]:
    """The cycles of L1 along one of two axes, and along one; Gluon's are as many as the latter.

    Raises ValueError: where they are not.
    """
    found = {row[1]: row[-1] for row in _rows("rotation") if row[0] == str(tile)}
    if found["one axis"] != found["Gluon"]:
        raise ValueError("docs/triton.md says that both ways through shared memory take the same")
    return [found["two axes"], found["one axis"]]


def launches() -> list[str]:
    """The shortest and the longest time of a launch of each kernel; then those of Triton's look-up."""
    found = []
    for column in (2, 3):
        for kernel in ("forward", "backward"):
            times = [float(row[column].split()[0]) for row in _rows("launch") if row[0].startswith(f"{kernel},")]
            found += [f"{min(times):.1f}", f"{max(times):.1f}"]
    return found


def on_a_gpu(encoding: str) -> list[str]:
    """The least and the most that a forward pass and a training step take there, in times of PyTorch's own."""
    found = []
    for mode in ("forward", "training"):
        ratios = [
            one["timing"]["ratio"]["median"]
            for one in document("gpu/grid/results.json")["measurements"]
            if one["candidate"] == "relattn triton" and one["workload"]["encoding"] == encoding
            if one["workload"]["mode"] == mode
        ]
        found += [f"{min(ratios):.2f}", f"{max(ratios):.2f}"]
    return found


def _rows(name: str) -> list[list[str]]:
    """The cells of a page's table of the Triton kernels, its titles too."""
    page = (RESULTS / "triton" / f"{name}.md").read_text(encoding="utf-8")
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("|")]
