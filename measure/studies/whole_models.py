"""Whole models, a training step on the compiled kernels beside one in tiles of PyTorch."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

import relattn.hf
from measure.studies.hugging_face import called, step
from measure.studies.hugging_face_models import SUBJECTS
from measure.studies.study import Figures, Study, figures_of, quartiles, table
from relattn.cli.bench.timing import interleaved
from relattn.nn import RelativeMultiheadAttention
from relattn_lab.config import LabConfig
from relattn_lab.model import LabModel

LAYERS = 2
SECONDS = 1.0
FAR = 10.0
"""A copy may be at most this many times as far from float64 as the original."""

SETTING = (
    "The same model on the native backend and on the tiled one, relattn's loop in PyTorch. Random weights, float32, "
    "the configuration's own dropout, two threads. The Hugging Face models have the published sizes with "
    f"{LAYERS} layers, batch 1, patched; what they take as they were stands in the study hugging-face. The lab's "
    "models are that of `relattn-lab compare` with its own settings, and a larger one. Forward and backward, medians "
    "of at least fifteen pairs of steps taken in turn, with quartiles. Before, the outputs are compared without "
    f"dropout: the native copy may be at most {FAR:g} times as far from float64 as transformers' own model (of the "
    "lab's models, the tiled copy)."
)


class Model(NamedTuple):
    """A model's copies, by the code that they run on, a random input, and the measured lengths."""

    copies: Callable[[], dict[str, nn.Module]]
    inputs: Callable[[int], dict[str, Tensor]]
    lengths: tuple[int, ...]


def of_transformers(name: str, lengths: tuple[int, ...]) -> Model:
    """A model of `hugging_face_models.py`."""
    subject = SUBJECTS[name]

    def copies() -> dict[str, nn.Module]:
        original = subject.make(LAYERS).train()
        found = {"original": original}
        for backend in ("tiled", "native"):
            found[backend] = copy.deepcopy(original)
            relattn.hf.patch(found[backend], backend)
        return found

    return Model(copies, subject.inputs, lengths)


def of_the_lab(batch: int, width: int, depth: int, heads: int, lengths: tuple[int, ...]) -> Model:
    """A model of `relattn_lab` with a row for every offset and head."""

    def copies() -> dict[str, nn.Module]:
        config = LabConfig(64, width, depth, heads, "relative-heads", length=max(lengths), dropout=0.0)
        native = LabModel(config).train()
        found: dict[str, nn.Module] = {"tiled": copy.deepcopy(native), "native": native}
        for backend, model in found.items():
            for module in model.modules():
                if isinstance(module, RelativeMultiheadAttention):
                    module.backend = backend
        return found

    return Model(copies, lambda length: {"input_ids": torch.randint(0, 64, (batch, length))}, lengths)


MODELS = {
    "T5-base, encoder, two layers": of_transformers("t5", (512, 1024, 2048)),
    "DeBERTa-v3-base, two layers": of_transformers("deberta_v2", (512, 1024)),
    "Wav2Vec2-Bert, encoder, two layers": of_transformers("wav2vec2_bert", (750, 1500)),
    "relattn_lab, as `relattn-lab compare` trains it (B = 4, 3 blocks, 4 heads of 24)": of_the_lab(4, 96, 3, 4, (256,)),
    "relattn_lab, larger (B = 4, 4 blocks, 8 heads of 64)": of_the_lab(4, 512, 4, 8, (512, 1024)),
}


def check(copies: dict[str, nn.Module], inputs: dict[str, Tensor]) -> None:
    """Raises RuntimeError: where the native copy's output is wrong."""
    before = copies[next(iter(copies))]
    double = {name: tensor.double() if tensor.is_floating_point() else tensor for name, tensor in inputs.items()}
    with torch.no_grad():
        truth = copy.deepcopy(before).double().eval()(**double)[0]
        answers = [model.eval()(**inputs)[0].double() for model in (before, copies["native"])]
    old, new = ((answer - truth).abs().max().item() for answer in answers)
    if new > FAR * old:
        raise RuntimeError(f"the native copy is off by {new:.1e}, the first by {old:.1e}")
    for model in copies.values():
        model.train()


def study(name: str) -> Study:
    """Every model and length."""
    measurements = {
        f"{shown}, L={length}": partial(measured, model, length)
        for shown, model in MODELS.items()
        for length in model.lengths
    }
    return Study(SETTING, measurements, markdown, packages=("torch", "transformers"))


def measured(model: Model, length: int, seconds: float = SECONDS) -> Figures:
    """The native copy's step over the tiled one's."""
    torch.manual_seed(0)
    copies, inputs = model.copies(), model.inputs(length)
    check(copies, inputs)
    tiled, native = (called(copies[which], step, inputs) for which in ("tiled", "native"))
    return {"ratio": figures_of(interleaved(tiled, native, seconds, "cpu").ratio)}


def markdown(figures: Mapping[str, Figures]) -> str:
    """One row for each model and length."""
    columns = {"model": "---", "native / tiled": "---"}
    return table(columns, [[key, quartiles(found["ratio"])] for key, found in figures.items()])
