"""The catalogue of studies: by name, the module that has it and what it answers. No PyTorch is loaded here."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from relattn.checks.values import check_choice

if TYPE_CHECKING:
    from measure.studies.study import Study


class Entry(NamedTuple):
    """module: of this package; it has a function `study`, which takes the name. answers: the study's title."""

    module: str
    answers: str


CATALOGUE = {
    "encodings": Entry("ratios", "The native backend beside PyTorch's attention without any encoding"),
    "window": Entry("ratios", "The native backend with a window"),
    "batches": Entry("ratios", "The native backend on short sequences in a batch"),
    "heads": Entry("ratios", "The native backend on one long sequence with one head"),
    "small": Entry("ratios", "What a small call costs"),
    "decoding": Entry("ratios", "One token against a cache"),
    "layer-decoding": Entry("layer_decoding", "One token through a whole layer with its cache"),
    "cost-per-pair": Entry("cost_per_pair", "Does a pair of query and key cost the same at every length?"),
    "memory": Entry("held", "What the native backend holds in memory"),
    "dropout": Entry("dropout", "What dropout costs"),
    "packed": Entry("hidden_blocks", "Packed documents beside the same documents as a batch"),
    "padded": Entry("hidden_blocks", "A padded batch beside a full one"),
    "sam": Entry("axes", "Rows for dy and dx: SAM's global attention"),
    "swin": Entry("axes", "A table of biases on a grid: Swin's windows"),
    "layoutlm": Entry("axes", "Text order, x and y: LayoutLMv3"),
    "hugging-face": Entry("hugging_face", "Hugging Face models, patched and as they were"),
    "hugging-face-batches": Entry("hugging_face", "Padded and packed batches of Hugging Face models, patched"),
    "keras": Entry("keras_steps", "A training step under Keras, in blocks and by the naive formula"),
    "devices": Entry("devices", "Several devices: what a process holds and sends"),
    "first-use": Entry("first_use", "What a first call adds to `import torch`"),
    "instructions": Entry("instructions", "Instructions of a call, counted by callgrind"),
    "call": Entry("call", "Where the time and the instructions of a call go"),
    "small-numbers": Entry("small_numbers", "What tiny numbers cost, and why blocks use exp2"),
}

LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)


class Grid(NamedTuple):
    """Workloads on which candidates are measured in time and memory: `python -m measure` with these options."""

    answers: str
    settings: dict[str, Any]
    candidates: tuple[str, ...]
    threads: int = 2


def _grid(encoding: str, causal: str, *candidates: str, **more: Any) -> Grid:
    direction = "causal" if causal == "yes" else "both directions"
    given = {"encodings": (encoding,), "causal": (causal,), "lengths": LENGTHS, "heads": (2,), "device": "cpu"} | more
    ours = ("sdpa, no encoding", "relattn native", "relattn blocks", "relattn dense")
    return Grid(f"Time and memory of {encoding}, {direction}", given, (*ours, *candidates))


ARRANGED = ("sdpa, S as mask", "flex")
GRIDS = {
    # Without causality our longest training steps take 4 and 8 seconds, and the first more.
    "relative": _grid("relative", "no", "plain, strided", *ARRANGED, patience=12.0),
    "relative-causal": _grid("relative", "yes", "plain, pad_reshape", *ARRANGED),
    "t5": _grid("t5", "no", "plain", *ARRANGED, "transformers", "x-transformers"),
}
"""By name; each has its own folder."""


def study_of(name: str) -> Study:
    """The study of that name.

    Raises ValueError: for a name that is not in the catalogue.
    """
    check_choice("study", name, CATALOGUE)
    return import_module(f"measure.studies.{CATALOGUE[name].module}").study(name)
