"""Whole models, a training step before and after: in the original code, on `tiled`, and on the compiled kernels.

Random weights, float32, the configuration's own dropout, two threads. The Hugging Face models have the published sizes
with two layers (`benchmarks/hugging_face_models.py`), batch 1; the original is transformers' code, with PyTorch's
attention if it supports that, else eager. The lab's models are the model of `relattn compare` with its own settings,
and a larger one; they have no original, because their code is relattn's. All copies have the same weights. Before the
time is taken, the outputs are compared without dropout. The distance of the native copy from the same model in float64
may be at most ten times that of the original (for the lab's models: of the tiled copy).

Each ratio is the median of at least fifteen pairs of steps, forward and backward, taken in turn
(`relattn.bench.timing`), with its quartiles. One table: `python benchmarks/whole_models.py`.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable
from typing import NamedTuple

import torch
from hugging_face import step
from hugging_face_models import SUBJECTS
from native import header
from torch import Tensor, nn

import relattn.hf
from relattn.bench.timing import Spread, interleaved
from relattn.lab.config import LabConfig
from relattn.lab.model import LabModel
from relattn.nn import RelativeMultiheadAttention

LAYERS = 2
FAR = 10.0
"""A copy may be at most this many times as far from float64 as the original."""


class Model(NamedTuple):
    """A model's copies, by the code that they run on, a random input, and the measured lengths."""

    copies: Callable[[], dict[str, nn.Module]]
    inputs: Callable[[int], dict[str, Tensor]]
    lengths: tuple[int, ...]


def of_transformers(name: str, lengths: tuple[int, ...]) -> Model:
    """A model of `benchmarks/hugging_face_models.py`."""
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
    """A model of `relattn.lab` with a row for every offset and head."""

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
    "relattn.lab, as `relattn compare` trains it (B = 4, 3 blocks, 4 heads of 24)": of_the_lab(4, 96, 3, 4, (256,)),
    "relattn.lab, larger (B = 4, 4 blocks, 8 heads of 64)": of_the_lab(4, 512, 4, 8, (512, 1024)),
}


def check(copies: dict[str, nn.Module], inputs: dict[str, Tensor]) -> None:
    """Stop where the native copy's output is wrong."""
    before = copies[next(iter(copies))]
    double = {name: tensor.double() if tensor.is_floating_point() else tensor for name, tensor in inputs.items()}
    with torch.no_grad():
        truth = copy.deepcopy(before).double().eval()(**double)[0]
        answers = [model.eval()(**inputs)[0].double() for model in (before, copies["native"])]
    old, new = ((answer - truth).abs().max().item() for answer in answers)
    assert new <= FAR * old, f"the native copy is off by {new:.1e}, the first by {old:.1e}"
    for model in copies.values():
        model.train()


def training(model: nn.Module, inputs: dict[str, Tensor]) -> Callable[[], None]:
    """A step from no gradients to all of them."""

    def once() -> None:
        model.zero_grad(set_to_none=True)
        step(model, inputs)

    return once


def shown(ratio: Spread) -> str:
    """The median with its quartiles."""
    return f"{ratio.median:.2f} [{ratio.lower:.2f} {ratio.upper:.2f}]"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="", help="parts of the names of models, separated by commas")
    parser.add_argument("--lengths", type=int, nargs="+", help="those of each model unless given")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=1.0, help="for the pairs of one ratio, fifteen at least")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    torch.manual_seed(0)
    print(f"{header(given.threads)}\n")
    print("| model | L | native, ms | native / original | native / tiled |\n|---|---:|---:|---|---|")
    for name, model in MODELS.items():
        if not any(part in name for part in given.models.split(",")):
            continue
        copies = model.copies()
        for length in given.lengths or model.lengths:
            inputs = model.inputs(length)
            check(copies, inputs)
            steps = {which: training(each, inputs) for which, each in copies.items()}
            native = steps.pop("native")
            timings = {which: interleaved(each, native, given.seconds, "cpu") for which, each in steps.items()}
            cells = [f"{1000 * timings['tiled'].seconds.median:.0f}"]
            cells += [shown(timings[which].ratio) if which in timings else "" for which in ("original", "tiled")]
            print(f"| {name} | {length} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
