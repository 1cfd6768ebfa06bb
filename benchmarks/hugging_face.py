"""What does a training step of a Hugging Face model cost, patched and as it was? Memory, and time side by side.

Encoder layers of a model's published size with random weights, batch 1, float32, the configuration's own dropout, no
gradient checkpointing. Memory: each step in a process of its own, what it adds to the parameters at its highest, their
gradients included. Time: turns taken one after the other in one process, where both fit.

    python benchmarks/hugging_face.py --memory --time --out benchmarks/results/hugging_face
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import transformers as hf
from torch import Tensor, nn

import relattn.hf
from relattn.bench.memory import (
    GIB,
    MIB,
    Memory,
    OverMemoryError,
    OverTimeError,
    available,
    current,
    in_own_process,
    peak,
    reset_peak,
)
from relattn.hf.models import alibi, conformer, deberta, t5, vits

PATIENCE = 400.0
"""Seconds for one step, beyond which it is given up."""
WARM_LENGTH = 128
SPARE = 2 * GIB
"""Left to everybody else on the machine."""


@dataclass(frozen=True)
class Subject:
    """A model of `layers` layers, a random input of a length for it, the lengths measured and the implementations."""

    make: Callable[[int, str], nn.Module]
    inputs: Callable[[int], dict[str, Tensor]]
    lengths: tuple[int, ...]
    implementations: tuple[str, ...]


def t5_base(layers: int, implementation: str) -> nn.Module:
    """The encoder of t5-base: d_model 768, 12 heads of 64, d_ff 3072."""
    config = hf.T5Config(vocab_size=32, d_model=768, d_kv=64, d_ff=3072, num_layers=layers, num_heads=12)
    return hf.T5EncoderModel._from_config(config, attn_implementation=implementation)


def deberta_v3_base(layers: int, implementation: str) -> nn.Module:
    """deberta-v3-base: 12 heads of 64, 256 buckets over 512 positions, both terms, shared projections."""
    config = hf.DebertaV2Config(
        vocab_size=32, hidden_size=768, num_hidden_layers=layers, num_attention_heads=12, intermediate_size=3072,
        relative_attention=True, pos_att_type=["c2p", "p2c"], position_buckets=256, max_position_embeddings=512,
        norm_rel_ebd="layer_norm", share_att_key=True, position_biased_input=False, type_vocab_size=0,
    )  # fmt: skip
    return hf.DebertaV2Model._from_config(config, attn_implementation=implementation)


def wav2vec2_bert(layers: int, implementation: str) -> nn.Module:
    """w2v-bert-2.0: 16 heads of 64, Shaw keys from -64 to 8; its encoder alone, without layer drop."""
    config = hf.Wav2Vec2BertConfig(num_hidden_layers=layers, layerdrop=0.0, apply_spec_augment=False)
    return hf.Wav2Vec2BertModel._from_config(config, attn_implementation=implementation).encoder


def text(length: int) -> dict[str, Tensor]:
    return {"input_ids": torch.randint(3, 32, (1, length))}


def speech(length: int) -> dict[str, Tensor]:
    return {"hidden_states": torch.randn(1, length, 1024)}


SUBJECTS = {
    "t5": Subject(t5_base, text, (1024, 2048, 4096, 8192), ("sdpa", "eager")),
    "deberta_v2": Subject(deberta_v3_base, text, (1024, 2048, 4096), ("eager",)),
    "wav2vec2_bert": Subject(wav2vec2_bert, speech, (750, 1500, 3000), ("sdpa", "eager")),
}


def prepared(name: str, layers: int, implementation: str) -> nn.Module:
    """The model in training mode; implementation: one of its own, "relattn", or "nothing" (see `without_attention`)."""
    subject = SUBJECTS[name]
    ours = implementation not in subject.implementations
    model = subject.make(layers, subject.implementations[0] if ours else implementation).train()
    if ours:
        relattn.hf.patch(model)
    return model


def without_attention() -> contextlib.AbstractContextManager[Any]:
    """Attention replaced by its values: what the rest of a layer needs is all that remains."""

    def values_alone(module: Any, query: Tensor, key: Tensor, value: Tensor, *_: Any) -> tuple[Tensor, None]:
        return value.transpose(1, 2).contiguous(), None

    stack = contextlib.ExitStack()
    for family in (alibi, conformer, deberta, t5, vits):
        stack.enter_context(mock.patch.object(family, "attend", values_alone))
    return stack


def step(model: nn.Module, inputs: dict[str, Tensor]) -> None:
    """Forward and backward, of an output that every position reaches."""
    model(**inputs)[0].square().mean().backward()


def measure_memory(
    began: Callable[[], None], name: str, layers: int, length: int, implementation: str, threads: int
) -> Memory:
    """One step's, after a short one that brings in the libraries' pages."""
    torch.set_num_threads(threads)
    model = prepared(name, layers, implementation)
    held = sum(parameter.nbytes for parameter in model.parameters())
    with without_attention() if implementation == "nothing" else contextlib.nullcontext():
        step(model, SUBJECTS[name].inputs(WARM_LENGTH))
        model.zero_grad(set_to_none=True)
        inputs = SUBJECTS[name].inputs(length)
        gc.collect()
        before = current("cpu")
        began()
        reset_peak("cpu")
        start = time.perf_counter()
        step(model, inputs)
        seconds = time.perf_counter() - start
    returned = sum(p.grad.nbytes for p in model.parameters() if p.grad is not None)
    return Memory(held, peak("cpu") - before, returned, seconds)


def memory(name: str, layers: int, length: int, implementation: str, gib: float) -> dict[str, Any]:
    """The figures of one step as JSON holds them, or why there are none."""
    limit = min(int(gib * GIB), available("cpu") - SPARE)
    entry = {"layers": layers, "length": length, "implementation": implementation, "limit_gib": round(limit / GIB, 1)}
    arguments = (name, layers, length, implementation, torch.get_num_threads())
    try:
        found = in_own_process(measure_memory, arguments, limit, PATIENCE)
    except (OverMemoryError, OverTimeError) as error:
        return entry | {"failed": str(error)}
    mib = {"peak_mib": found.peak, "parameter_gradients_mib": found.returned, "parameters_mib": found.held}
    return entry | {key: round(size / MIB) for key, size in mib.items()} | {"seconds": round(found.seconds, 2)}


def times(name: str, layers: int, length: int, implementation: str, seconds: float) -> dict[str, Any]:
    """Seconds of a step, patched and as it was, turn by turn on the same model."""
    model, inputs = prepared(name, layers, implementation), SUBJECTS[name].inputs(length)
    taken: dict[str, list[float]] = {"relattn": [], implementation: []}
    end = time.perf_counter() + seconds
    while len(taken["relattn"]) < 3 or time.perf_counter() < end:
        for which, found in taken.items():
            with relattn.hf.patched(model) if which == "relattn" else contextlib.nullcontext():
                start = time.perf_counter()
                step(model, inputs)
                found.append(time.perf_counter() - start)
            model.zero_grad(set_to_none=True)
    ratios = [ours / theirs for ours, theirs in zip(*taken.values(), strict=True)]
    return {
        "layers": layers,
        "length": length,
        "implementation": implementation,
        "turns": len(ratios),
        "seconds": {which: round(statistics.median(found), 3) for which, found in taken.items()},
        "ratio": round(statistics.median(ratios), 3),
        "ratios": [round(ratio, 3) for ratio in ratios],
    }


def add(path: Path, kind: str, entry: dict[str, Any]) -> None:
    """Write a measurement into a JSON file, in place of an earlier one of the same thing."""
    print(path.stem, kind, entry, flush=True)
    document = json.loads(path.read_text()) if path.exists() else {}
    versions = {package.__name__: package.__version__ for package in (relattn, torch, hf)}
    key = ("layers", "length", "implementation")
    others = [old for old in document.get(kind, []) if any(old[k] != entry[k] for k in key)]
    entries = sorted([*others, entry], key=lambda one: [str(one[k]).zfill(6) for k in key])
    path.write_text(json.dumps(document | {"versions": versions, kind: entries}, indent=1) + "\n")


def main() -> None:
    """Measure what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=SUBJECTS, default=list(SUBJECTS))
    parser.add_argument("--layers", type=int, nargs="+", default=[2])
    parser.add_argument("--lengths", type=int, nargs="+", help="those of each model unless given")
    parser.add_argument("--implementations", nargs="+", help="the model's own; for memory also relattn and nothing")
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--time", action="store_true")
    parser.add_argument("--gib", type=float, default=14.0, help="what a step may add, at most")
    parser.add_argument("--seconds", type=float, default=30.0, help="for the turns of one timing")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "hugging_face")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name in arguments.models:
        path, subject = arguments.out / f"{name}.json", SUBJECTS[name]
        for layers in arguments.layers:
            for length in arguments.lengths or subject.lengths:
                own = arguments.implementations or subject.implementations
                if arguments.memory:
                    for which in arguments.implementations or (*own, "relattn", "nothing"):
                        add(path, "memory", memory(name, layers, length, which, arguments.gib))
                if arguments.time:
                    for which in own:
                        add(path, "time", times(name, layers, length, which, arguments.seconds))


if __name__ == "__main__":
    main()
