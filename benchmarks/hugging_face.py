"""What `relattn.hf.patch` saves: peak memory and time of Hugging Face models, as they were and patched.

Models of published sizes with two layers and random weights (`hugging_face_models.py`), batch 1, float32, the
configuration's own dropout, no gradient checkpointing. As it was: transformers' own choice of attention. Memory: one
call in a separate process; the most that it adds to the parameters, in a training step with their gradients. Time: the
same model patched and not, in turn in one process, seven or more pairs; the median ratio with its quartiles. Results
are kept in figures.json: an interrupted run goes on where it stopped.

    python benchmarks/hugging_face.py                   measures, and writes the table and the picture
    python benchmarks/hugging_face.py --models sam t5   these anew
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hugging_face_table as table
import torch
import transformers as hf
from hugging_face_models import SUBJECTS, Subject
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
from relattn.bench.timing import Spread
from relattn.support.machine import machine

OUT = Path(__file__).parent / "results" / "hugging_face"
LAYERS = 2
PAIRS, SECONDS = 7, 4.0
PATIENCE = 500.0
"""The seconds after which a call is given up."""
LIMIT, SPARE = 14 * GIB, 2 * GIB
"""The most memory that a call may add, and the memory that is left for other processes."""


def forward(model: nn.Module, inputs: dict[str, Tensor]) -> None:
    """Without gradients."""
    with torch.no_grad():
        model(**inputs)


def step(model: nn.Module, inputs: dict[str, Tensor]) -> None:
    """Forward and backward, from an output that depends on every position."""
    model(**inputs)[0].square().mean().backward()


CALLS: dict[str, Callable[[nn.Module, dict[str, Tensor]], None]] = {"forward": forward, "training": step}


def made(subject: Subject, patched: bool) -> nn.Module:
    """In training mode."""
    torch.manual_seed(0)
    model = subject.make(LAYERS).train()
    if patched:
        relattn.hf.patch(model)
    return model


def measure_memory(began: Callable[[], None], name: str, length: int, kind: str, patched: bool, threads: int) -> Memory:
    """The memory of one call, after a short one."""
    torch.set_num_threads(threads)
    subject, call = SUBJECTS[name], CALLS[kind]
    model = made(subject, patched)
    held = sum(parameter.nbytes for parameter in model.parameters())
    call(model, subject.inputs(subject.warm))
    model.zero_grad(set_to_none=True)
    inputs = subject.inputs(length)
    gc.collect()
    before = current("cpu")
    began()
    reset_peak("cpu")
    start = time.perf_counter()
    call(model, inputs)
    seconds = time.perf_counter() - start
    returned = sum(p.grad.nbytes for p in model.parameters() if p.grad is not None)
    return Memory(held, peak("cpu") - before, returned, seconds)


def memory(name: str, length: int, kind: str, patched: bool) -> dict[str, Any]:
    """MiB of one call, or why there are none."""
    limit = min(LIMIT, available("cpu") - SPARE)
    try:
        found = in_own_process(measure_memory, (name, length, kind, patched, torch.get_num_threads()), limit, PATIENCE)
    except OverMemoryError:
        return {"over_gib": round(limit / GIB, 1)}
    except OverTimeError as error:
        return {"failed": str(error)}
    return {"mib": round(found.peak / MIB), "seconds": round(found.seconds, 2)}


def times(name: str, length: int, kind: str) -> dict[str, Any]:
    """The time of a patched call over that of the original, in turn on the same model."""
    subject, call = SUBJECTS[name], CALLS[kind]
    model, inputs = made(subject, patched=False), subject.inputs(length)
    taken: dict[bool, list[float]] = {False: [], True: []}
    end = None
    while end is None or len(taken[True]) <= PAIRS or time.perf_counter() < end:
        for patched, found in taken.items():
            with relattn.hf.patched(model) if patched else contextlib.nullcontext():
                start = time.perf_counter()
                call(model, inputs)
                found.append(time.perf_counter() - start)
            model.zero_grad(set_to_none=True)
        end = time.perf_counter() + SECONDS if end is None else end
    ratios = [
        ours / theirs for theirs, ours in zip(taken[False][1:], taken[True][1:], strict=True)
    ]  # the first warms up
    spread = Spread.of(ratios)
    return {"ratio": [round(x, 3) for x in (spread.median, spread.lower, spread.upper)], "pairs": len(ratios)}


def wanted(name: str) -> Iterator[tuple[int, str, bool]]:
    """(length, kind, whether the time is taken, too) of every measurement of a model."""
    subject = SUBJECTS[name]
    for length in subject.lengths:
        yield from ((length, kind, True) for kind in CALLS)
    for length in subject.memory:
        yield from ((length, kind, False) for kind in CALLS)
    for length in subject.forward:
        yield length, "forward", False


class Figures:
    """figures.json: the measurements of each model, length and kind of call."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.entries: list[dict[str, Any]] = json.loads(path.read_text())["entries"] if path.exists() else []

    def forget(self, names: list[str]) -> None:
        """Drops the figures that are measured again, and those that are no longer measured."""
        kept = {(name, length, kind) for name in SUBJECTS if name not in names for length, kind, _ in wanted(name)}
        self.entries = [entry for entry in self.entries if (entry["model"], entry["length"], entry["kind"]) in kept]

    def of(self, name: str, length: int, kind: str) -> dict[str, Any]:
        """An entry, empty where nothing is measured yet."""
        key = {"model": name, "length": length, "kind": kind}
        found = next((entry for entry in self.entries if entry.items() >= key.items()), None)
        if found is None:
            found = dict(key)
            self.entries.append(found)
        return found

    def write(self) -> None:
        """With the machine and the versions."""
        versions = {package.__name__: package.__version__ for package in (relattn, torch, hf)}
        document = {"machine": machine(), "versions": versions, "layers": LAYERS, "entries": self.entries}
        self.path.write_text(json.dumps(document, indent=1) + "\n")


def main() -> None:
    """Measure what figures.json has not yet, memory first, and write the table and the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=SUBJECTS, default=[], help="to be measured anew")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    arguments.out.mkdir(parents=True, exist_ok=True)
    figures = Figures(arguments.out / "figures.json")
    figures.forget(arguments.models)
    everything = [(name, *what) for name in SUBJECTS for what in wanted(name)]
    for name, length, kind, _ in everything:
        entry = figures.of(name, length, kind)
        for which, patched in (("original", False), ("patched", True)):
            if which not in entry:
                entry[which] = memory(name, length, kind, patched)
                print(name, length, kind, which, entry[which], flush=True)
                figures.write()
    for name, length, kind, timed in everything:
        entry = figures.of(name, length, kind)
        if timed and "ratio" not in entry and "mib" in entry["original"]:
            entry |= times(name, length, kind)
            print(name, length, kind, "time", entry["ratio"], flush=True)
            figures.write()
    table.write(arguments.out)


if __name__ == "__main__":
    main()
