"""The figures in README and docs, taken from the files under benchmarks/results, and the pages of the studies.

    python -m benchmarks.pages

It writes the page of every study from its figures. In the other pages it finds the sentences and rows below, "{}" for a
figure, and writes the figures in. The tests fail where a page says anything else than the files.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from relattn.bench.studies.catalogue import CATALOGUE, GRIDS, study_of
from relattn.bench.studies.hugging_face_models import SUBJECTS
from relattn.bench.studies.hugging_face_table import shown as memory_of
from relattn.bench.studies.ratios import medians
from relattn.bench.studies.study import Kept, shown

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
COLUMNS = ("forward", "training", "forward, causal", "training, causal")
MIB = 2**20
SLOWER = 1.02


class Place(NamedTuple):
    """A sentence or a row of a page, with "{}" for every figure; it stands there once."""

    page: str
    template: str
    figures: Callable[[], Sequence[str]]

    def pattern(self) -> re.Pattern[str]:
        """What the page says now, wherever its lines break; a group for every figure."""
        parts = [r"\s+".join(map(re.escape, part.split(" "))) for part in self.template.split("{}")]
        return re.compile(r"([^|\n]*?)".join(parts))

    def written(self, text: str) -> str:
        """The page with the figures.

        Raises ValueError: unless the sentence stands there once.
        """
        hits = list(self.pattern().finditer(text))
        if len(hits) != 1:
            raise ValueError(f"{self.page}: found {len(hits)} times, expected once: {self.template}")
        for group, figure in reversed(list(enumerate(self.figures(), 1))):
            text = text[: hits[0].start(group)] + figure + text[hits[0].end(group) :]
        return text


@cache
def kept(study: str) -> Kept:
    """A study's file."""
    return Kept.read(RESULTS / f"{study}.json", study)


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


def patched(model: str, kind: str) -> str:
    """A patched call's time over the original's."""
    return shown(kept("hugging-face").figures[f"{model}, {kind}"]["ratio"])


def row(model: str) -> list[str]:
    """Memory of a training step, and the time of a forward pass."""
    return [*added(model), patched(model, "forward")]


def wavlm() -> list[str]:
    """The README's sentence."""
    before, after = added("wavlm, 3000")
    return [after, before, patched("wavlm, 3000", "training")]


def mpnet() -> list[str]:
    """A length that may not fit as it was."""
    return [*added("mpnet, 8192"), patched("mpnet, 512", "forward")]


def all_models() -> list[str]:
    """How many were timed, the lowest and the highest ratio, and the models with a call that takes longer than "
    "before."""
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


PAPER = ("sinusoid", "sinusoid+voice", "relative", "relative+pitch+time")


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


def chorales(encoding: str) -> list[str]:
    """Mean and standard deviation at every length; the n-gram's mean."""
    results = document("chorales/results.json")
    if encoding == "n-gram":
        return [f"{results['ngram'][str(length)]['nats']:.3f}" for length in results["lengths"]]
    found = (results["summary"][encoding][str(length)] for length in results["lengths"])
    return [f"{one['mean']:.3f} ± {one['spread']:.3f}" for one in found]


def ngram() -> list[str]:
    """On validation."""
    return [f"{document('jsb/results.json')['ngram']['valid']:.3f}"]


def held(what: str) -> list[str]:
    """MiB at both lengths."""
    return [str(kept("memory").figures[f"{what}, L={length}"]["mib"]) for length in (4096, 16384)]


def over_ranks() -> list[str]:
    """MiB of the zigzag ring on two and on four, of one process of tiled and of native."""
    figures = kept("devices").figures
    found = [figures[f"{world}, zigzag, ring"]["beyond_mib"] for world in (2, 4)]
    alone = [figures[f"1, {backend}"]["beyond_mib"][0] for backend in ("tiled", "native")]
    return [str(figure) for figure in (min(found[0]), max(found[0]), min(found[1]), max(found[1]), *alone)]


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


def not_timed(reason: str) -> str:
    """What a table says in place of a time.

    Raises ValueError: for a reason that the pages do not explain.
    """
    if "no backward" in reason:
        return ""
    if "takes longer than" in reason or "more memory" in reason or " GiB or more" in reason:
        return "gave up"
    raise ValueError(reason)


def triton_model() -> list[str]:
    """An A100 with a table for every offset: a forward pass and a training step."""
    page = (RESULTS / "triton" / "model.md").read_text(encoding="utf-8")
    (row,) = (line for line in page.splitlines() if line.startswith("| sm_80 | relative keys |"))
    cells = [cell.strip() for cell in row.split("|")]
    return [cells[6], cells[-2]]


SPEED = {
    "no encoding": "none", "`T5Bias`": "t5", "`AlibiBias`": "alibi", "`RotaryEmbedding`": "rope",
    "`ShawEmbedding`, keys and values": "shaw", "`RelativeEmbedding`, a row for every offset": "relative",
    "`TransformerXLEmbedding`, its projection included": "transformer-xl, with its projection",
}  # fmt: skip
IN_README = (
    "no encoding",
    "`T5Bias`",
    "`ShawEmbedding`, keys and values",
    "`RelativeEmbedding`, a row for every offset",
)
MODELS = {
    "| WavLM-base, encoder | 60 s of audio | {} | {} | {} of the time |": partial(row, "wavlm, 3000"),
    "| SAM-B, vision encoder | 1,024 pixels | {} | {} | {} |": partial(row, "sam, 1024"),
    "| LayoutLMv3-base | 4,096 tokens | {} | {} | {} |": partial(row, "layoutlm, 4096"),
    "| XLNet-base | 2,048 tokens | {} | {} | {} |": partial(row, "xlnet, 2048"),
    "| MPNet-base | 8,192 tokens | {} | {} | not timed; {} at 512 |": mpnet,
}
ROWS = {
    "| sinusoids | {} | 0.417 |": "sinusoid",
    "| sinusoids and voice labels concatenated | {} | 0.370 |": "sinusoid+voice",
    "| relative | {} | 0.357 |": "relative",
    "| relative, with pitch and time | {} | 0.335 |": "relative+pitch+time",
}


CHORALES = {
    "n-gram": "| n-gram | {} | {} | {} | |",
    "relative": "| `relative-heads` (Huang et al. 2018) | {} | {} | {} | 0.357, relative attention |",
    "rope": "| `rope` (Su et al. 2021) | {} | {} | {} |  |",
    "sinusoid": "| `sinusoid` (absolute) | {} | {} | {} | 0.417, baseline |",
}
BESIDE = {
    "| PyTorch's attention, no encoding | {} | {} | {} | {} |": ("relative", "sdpa, no encoding"),
    "| **`RelativeEmbedding` for every offset, compiled kernels** | {} | {} | {} | {} |": (
        "relative",
        "relattn native",
    ),
    "| **the same table, in tiles of PyTorch** | {} | {} | {} | {} |": ("relative", "relattn tiled"),
    "| the same table by the plain formula | {} | {} | {} | {} |": ("relative", "plain, strided"),
    "| the same table, handed to PyTorch's kernel as a mask | {} | {} | {} | {} |": ("relative", "sdpa, S as mask"),
    "| the same table by compiled FlexAttention | {} | {} | {} | {} |": ("relative", "flex"),
}
"""At 8,192 positions."""


def places() -> Iterator[Place]:
    """Every figure of README and docs that comes from a file."""
    yield Place("README.md", "a training step of two layers adds {} in place of {}, and takes {} of the time", wavlm)
    for page, names in (("README.md", IN_README), ("docs/measured.md", SPEED)):
        for name in names:
            yield Place(page, f"| {name} | {{}} | {{}} | {{}} | {{}} |", partial(speed, SPEED[name]))
    yield Place("README.md", "| measured | {} | {} | {} | {} | {} |", paper)
    for page in ("docs/measured.md", "docs/hf.md"):
        for template, figures in MODELS.items():
            yield Place(page, template, figures)
    yield Place(
        "docs/measured.md",
        "Over {} models, the timed calls took {} to {} of the original's time. These took more than {} times as long, "
        "each at its slowest call: {}.\n",
        all_models,
    )
    yield Place(
        "docs/measured.md",
        "with 8,192 keys {} to {} in float32 and {} to {} in bfloat16, with 1,024 keys {} to {} in float32 "
        "and {} to {} in",
        decoding,
    )
    for template, (study, candidate) in BESIDE.items():
        yield Place("docs/measured.md", template, partial(on_grid, study, candidate, 8192))
    for what in COLUMNS:
        shown = what.replace("training", "training step")
        shown = shown if "causal" in what else f"{shown}, both directions"
        yield Place("docs/native.md", f"| {shown} | {{}} | {{}} |", partial(held, what))
    yield Place(
        "docs/triton.md",
        "it gives {} times the tensor cycles of FlashAttention-2's products for a forward pass, and {} times for a",
        triton_model,
    )
    for backend, template in (
        ("tiled", "a causal training step at 1,024 positions takes {} times one without"),
        ("native", "kernels, at {} times ([figures](../benchmarks/results/dropout.md))"),
    ):
        yield Place("docs/tiles.md", template, partial(ratio, "dropout", backend))
    yield Place("docs/lab.md", "| n-gram | {} | |", ngram)
    for template, encoding in ROWS.items():
        yield Place("docs/lab.md", template, partial(with_spread, "jsb/results.json", encoding))
    yield Place(
        "docs/lab.md",
        "from 256 tokens to 1,024 they go from {} to {} and from {} to {} nats (one seed each). A table with a row for "
        "every offset goes from {} to {} when it is clamped",
        longer_windows,
    )
    for encoding, template in CHORALES.items():
        yield Place("docs/lab.md", template, partial(chorales, encoding))
    yield Place(
        "docs/lab.md", "the last row comes to {}. [The whole table]", partial(with_spread, "jsb/longer.json", PAPER[-1])
    )
    yield Place(
        "docs/distributed.md",
        "holds {} to {} MiB on each of two processes beyond inputs, output and gradients, and {} to {} on each of "
        "four. One process of `tiled` holds {}, and one process of `native` {},",
        over_ranks,
    )


OTHERS = {
    "encodings-avx512.md": "The native backend beside PyTorch's attention, with AVX-512",
    "devices-model/model.md": "A model of 8 to 1,024 devices",
    "triton/README.md": "The Triton kernels as compiled for six generations of GPUs",
    "triton/model.md": "A model of their speed",
    "gpu/README.md": "On a GPU",
    "jsb/README.md": "The table of Huang et al. 2018, carried out again",
    "chorales/README.md": "Three encodings on Bach's chorales",
}


def index() -> str:
    """What there is, one row for each page."""
    found = {f"{name}/table.md": grid.answers for name, grid in GRIDS.items()}
    found |= {f"{name}.md": entry.answers for name, entry in CATALOGUE.items()} | OTHERS
    there = {page: title for page, title in found.items() if (RESULTS / page).exists()}
    lines = [
        "# Figures", "",
        "One page per study. Each names its command, its machine and its date; the figures lie beside it as JSON.", "",
        "| page | |", "|---|---|",
        *(f"| [{page.removesuffix('.md').removesuffix('/README').removesuffix('/table')}]({page}) | {title} |"
          for page, title in there.items()),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def pages() -> Iterator[tuple[Path, str]]:
    """Every page, as the files say."""
    yield RESULTS / "README.md", index()
    for name in CATALOGUE:
        if (RESULTS / f"{name}.json").exists():
            yield RESULTS / f"{name}.md", kept(name).page(study_of(name))
    found: dict[Path, str] = {}
    for place in places():
        path = ROOT / place.page
        found[path] = place.written(found.get(path) or path.read_text(encoding="utf-8"))
    yield from found.items()


def main() -> None:
    """Write the pages."""
    for path, text in pages():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
