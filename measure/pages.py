"""The figures in README and docs, taken from the files under measure/results, and the pages of the studies.

    python -m measure.pages

It writes the page of every study from its figures. In the other pages it finds the sentences and rows below, "{}" for a
figure, and writes the figures in. The tests fail where a page says anything else than the files.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from measure import figures as take
from measure.figures import COLUMNS, PAPER, RESULTS, ROOT, kept
from measure.studies.catalogue import CATALOGUE, GRIDS, study_of


class Place(NamedTuple):
    """A sentence or a row of a page, with "{}" for every figure, not at its end; it stands there once."""

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
    "| WavLM-base, encoder | 60 s of audio | {} | {} | {} of the time |": partial(take.row, "wavlm, 3000"),
    "| SAM-B, vision encoder | 1,024 pixels | {} | {} | {} |": partial(take.row, "sam, 1024"),
    "| LayoutLMv3-base | 4,096 tokens | {} | {} | not timed; {} at 512 |": partial(
        take.row, "layoutlm, 4096", "layoutlm, 512"
    ),
    "| XLNet-base | 2,048 tokens | {} | {} | {} |": partial(take.row, "xlnet, 2048"),
    "| MPNet-base | 8,192 tokens | {} | {} | not timed; {} at 512 |": partial(take.row, "mpnet, 8192", "mpnet, 512"),
}
JSB = {
    "| sinusoids | {} | 0.417 |": "sinusoid",
    "| sinusoids and voice labels concatenated | {} | 0.370 |": "sinusoid+voice",
    "| relative | {} | 0.357 |": "relative",
    "| relative, with pitch and time | {} | 0.335 |": "relative+pitch+time",
}
BESIDE = {
    "| **`RelativeEmbedding` for every offset, compiled kernels** | {} | {} | {} | {} |": (
        "relative",
        "relattn native",
    ),
    "| **the same table, in tiles of PyTorch (the backend before `blocks`)** | {} | {} | {} | {} |": (
        "relative",
        "relattn tiled",
    ),
    "| the same table by the plain formula | {} | {} | {} | {} |": ("relative", "plain, strided"),
    "| the same table, handed to PyTorch's kernel as a mask | {} | {} | {} | {} |": ("relative", "sdpa, S as mask"),
    "| the same table by compiled FlexAttention | {} | {} | {} | {} |": ("relative", "flex"),
}
LAUNCH = (
    "a forward launch takes {} to {} microseconds of the host, and a backward launch {} to {}. We aimed at 15 at most. "
    "By Triton's own look-up the same launches take {} to {} and {} to {} ([figures]"
)
ON_A_GPU = (
    (
        "README.md",
        "alibi",
        "a forward pass takes {} to {} times the time of that kernel, and a training step {} to {} times;",
    ),
    ("README.md", "shaw-keys", "with Shaw's clipped relative keys {} to {} and {} to {} times;"),
    ("README.md", "relative", "with a row for every offset {} to {} and {} to {} times"),
    (
        "docs/triton.md",
        "relative",
        "a forward pass takes {} to {} times that time and a training step {} to {} times.",
    ),
    ("docs/triton.md", "shaw-keys", "With Shaw's clipped relative keys it is {} to {} and {} to {} times,"),
    ("docs/triton.md", "alibi", "and with ALiBi's bias {} to {} and {} to {} times."),
)
"""The page, the encoding, and the sentence."""
ROTATION = "For a tile of 64 that is {} cycles of L1. `tl.gather` from a tensor with one axis takes {},"
FLOOR = "| PyTorch's attention, no encoding | 1 | 1 | {} | {} |"
"""At 8,192 positions. The times of the others are ratios to this row."""


def places() -> Iterator[Place]:
    """Every figure of README and docs that comes from a file."""
    yield Place(
        "README.md",
        "a training step of two layers adds {} instead of {}, and a forward pass takes {} of the time",
        take.wavlm,
    )
    for page, names in (("README.md", IN_README), ("docs/measured.md", SPEED)):
        for name in names:
            yield Place(page, f"| {name} | {{}} | {{}} | {{}} | {{}} |", partial(take.speed, SPEED[name]))
    yield Place("README.md", "| measured | {} | {} | {} | {} | {} |", take.paper)
    for page in ("docs/measured.md", "docs/hf.md"):
        for template, figures in MODELS.items():
            yield Place(page, template, figures)
    yield Place(
        "docs/measured.md",
        "Over {} models, the timed calls took {} to {} of the original's time. These took more than {} times as long, "
        "each at its slowest call: {}.\n",
        take.all_models,
    )
    yield Place(
        "docs/measured.md",
        "with 8,192 keys {} to {} in float32 and {} to {} in bfloat16, with 1,024 keys {} to {} in float32 "
        "and {} to {} in",
        take.decoding,
    )
    yield Place("docs/measured.md", FLOOR, partial(take.beyond, "relative", "sdpa, no encoding", 8192))
    for template, (study, candidate) in BESIDE.items():
        yield Place("docs/measured.md", template, partial(take.on_grid, study, candidate, 8192))
    for what in COLUMNS:
        shown = what.replace("training", "training step")
        shown = shown if "causal" in what else f"{shown}, both directions"
        yield Place("docs/native.md", f"| {shown} | {{}} | {{}} |", partial(take.held, what))
    yield Place("docs/triton.md", LAUNCH, take.launches)
    for page, encoding, template in ON_A_GPU:
        yield Place(page, template, partial(take.on_a_gpu, encoding))
    yield Place("docs/triton.md", ROTATION, partial(take.rotation, 64))
    for backend, template in (
        ("blocks", "a causal training step at 1,024 positions takes {} times one without"),
        ("native", "kernels, at {} times ([figures](../measure/results/dropout.md))"),
    ):
        yield Place("docs/blocks.md", template, partial(take.ratio, "dropout", backend))
    yield Place("docs/lab.md", "| n-gram | {} | |", take.ngram)
    for template, encoding in JSB.items():
        yield Place("docs/lab.md", template, partial(take.with_spread, "jsb/results.json", encoding))
    yield Place(
        "docs/lab.md",
        "from 256 tokens to 1,024 they go from {} to {} and from {} to {} nats (one seed each). A table with a row for "
        "every offset goes from {} to {} when it is clamped",
        take.longer_windows,
    )
    yield Place(
        "docs/lab.md",
        "the last row comes to {}. [The whole table]",
        partial(take.with_spread, "jsb/longer.json", PAPER[-1]),
    )
    yield Place(
        "docs/distributed.md",
        "holds {} to {} MiB on each of two processes beyond inputs, output and gradients, and {} to {} on each of "
        "four. One process of `native` holds {},",
        take.over_ranks,
    )


ELSEWHERE = {"avx2": "with AVX2", "xeon": "on an Intel Xeon"}
"""The folders of studies that were taken on other machines too."""
OTHERS = {
    "goals.md": "Which goals the native backend misses, and what limits it",
    "choice.md": 'What "auto" takes on a CPU: the figures behind its bounds',
    "devices-model/model.md": "A model of 8 to 1,024 devices",
    "triton/README.md": "The Triton kernels as compiled for six generations of GPUs",
    "triton/launch.md": "What a launch of them costs the host",
    "triton/rotation.md": "A tile's rotation in them, in three ways",
    "gpu/README.md": "On a GPU",
    "gpu/sizes.md": "Sizes of tiles there",
    "jsb/README.md": "The table of Huang et al. 2018, carried out again",
}


def index() -> str:
    """What there is, one row for each page."""
    found = {f"{name}/table.md": grid.answers for name, grid in GRIDS.items()}
    found |= {f"{name}.md": entry.answers for name, entry in CATALOGUE.items()}
    found |= {
        f"{folder}/{name}.md": f"{entry.answers}, {where}"
        for folder, where in ELSEWHERE.items()
        for name, entry in CATALOGUE.items()
    }
    found |= OTHERS
    there = {page: title for page, title in found.items() if (RESULTS / page).exists()}
    lines = [
        "# Figures", "",
        "One page per study. It names its command, its machine and its date, and shows the code of that date.",
        "Its figures lie beside it as JSON. Two things changed on 2026-11-25, after the pages with AVX2 and on an",
        "Intel Xeon were taken: the kernel for few queries, and the last group of up to four queries. The model of",
        "many devices, the remarks on the goals, and the choice of backends are no studies.", "",
        "| page | |", "|---|---|",
        *(f"| [{page.removesuffix('.md').removesuffix('/README').removesuffix('/table')}]({page}) | {title} |"
          for page, title in there.items()),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def pages() -> Iterator[tuple[Path, str]]:
    """Every page, as the files say."""
    yield RESULTS / "README.md", index()
    for name in CATALOGUE:
        for study in (name, *(f"{folder}/{name}" for folder in ELSEWHERE)):
            if (RESULTS / f"{study}.json").exists():
                yield RESULTS / f"{study}.md", kept(study).page(study_of(name))
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
