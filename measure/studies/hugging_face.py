"""What `relattn.hf.patch` saves: peak memory and time of Hugging Face models, as they were and patched."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor, nn

import relattn.hf
from measure.memory import (
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
from measure.studies import hugging_face_table as tables
from measure.studies.hugging_face_models import BATCHES, SUBJECTS, Subject
from measure.studies.study import Figures, Study, figures_of
from relattn.cli.bench.timing import interleaved

PACKAGES = ("torch", "transformers")
LAYERS = 2
SECONDS = 4.0
PATIENCE = 500.0
"""The seconds after which a call is given up."""
LONGEST_PAIR = 7.5
"""The seconds of the two calls for the memory, together, up to which their times are compared, too. With the longer
ones the study would take hours more.
"""
LIMIT, SPARE = 14 * GIB, 2 * GIB
"""The most memory that a call may add, and the memory that is left for other processes."""
SETTING = (
    f"{LAYERS} layers of the published size, random weights, float32, the configuration's own dropout, no "
    "gradient checkpointing. As it was: transformers' own choice of attention. Memory: what one call adds to the "
    f"parameters at its highest, in a process of its own that may add up to {LIMIT / GIB:.0f} GiB; in a training step "
    "their gradients are included. Time: patched / as it was, the median ratio of pairs taken in turn in one process, "
    f"with its quartiles. Time is taken where the two calls for the memory took {LONGEST_PAIR} seconds at most, "
    "together; elsewhere the cell is blank."
)
SHOWN = {
    "hugging-face": "Batch 1. ",
    "hugging-face-batches": "Padded: four texts, of the length, a quarter of it twice and an eighth, so 0.41 of the "
    "tokens are real. Packed: batch 1, positions that begin again. ",
}


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
    subject, call = (SUBJECTS | BATCHES)[name], CALLS[kind]
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


def memory(name: str, length: int, kind: str, patched: bool) -> Figures:
    """MiB of one call, or why there are none."""
    limit = min(LIMIT, available("cpu") - SPARE)
    try:
        found = in_own_process(measure_memory, (name, length, kind, patched, torch.get_num_threads()), limit, PATIENCE)
    except OverMemoryError:
        return {"over_gib": round(limit / GIB, 1)}
    except OverTimeError as error:
        return {"failed": str(error)}
    return {"mib": round(found.peak / MIB), "seconds": round(found.seconds, 2)}


def times(name: str, length: int, kind: str) -> Figures:
    """The time of a patched copy's call over that of the original's, in turn."""
    subject = (SUBJECTS | BATCHES)[name]
    inputs = subject.inputs(length)
    original, patched = (called(made(subject, each), CALLS[kind], inputs) for each in (False, True))
    timing = interleaved(original, patched, SECONDS, "cpu")
    return {"ratio": figures_of(timing.ratio), "pairs": timing.pairs}


def called(
    model: nn.Module, call: Callable[[nn.Module, dict[str, Tensor]], None], inputs: dict[str, Tensor]
) -> Callable[[], None]:
    """A call that begins without gradients."""

    def once() -> None:
        model.zero_grad(set_to_none=True)
        call(model, inputs)

    return once


def study(name: str) -> Study:
    """Every model, length and kind of call, of one text or of a batch."""
    subjects = SUBJECTS if name == "hugging-face" else BATCHES
    measurements = {
        f"{model}, {length}, {kind}": partial(measured, model, length, kind)
        for model, subject in subjects.items()
        for length, kind in wanted(subject)
    }
    setting, draw = SHOWN[name] + SETTING, tables.draw if subjects is SUBJECTS else None
    return Study(setting, measurements, partial(tables.markdown, draw is not None), packages=PACKAGES, draw=draw)


def wanted(subject: Subject) -> Iterator[tuple[int, str]]:
    """The length and the kind of every measurement of a model."""
    for length in subject.lengths:
        yield from ((length, kind) for kind in CALLS)
    for length in subject.forward:
        yield length, "forward"


def measured(name: str, length: int, kind: str) -> Figures:
    """Memory as it was and patched, and the ratio of the times where a pair does not take long."""
    found: Figures = {
        which: memory(name, length, kind, patched) for which, patched in (("original", False), ("patched", True))
    }
    if any("mib" not in memory for memory in found.values()):
        return found
    is_long = sum(memory["seconds"] for memory in found.values()) > LONGEST_PAIR
    return found if is_long else found | times(name, length, kind)
