"""Where the time and the instructions of a call go: five calls, each divided among the parts that take them."""

from __future__ import annotations

import cProfile
import ctypes
import os
import resource
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
import torch.nn.functional as F

import relattn.hf
from measure.frames import Answer, attention
from measure.studies import instructions, layer_decoding
from measure.studies.parts import LIBRARIES, Share, by_library, by_part, kernel, shares_of
from measure.studies.study import Figures, Study, figures_of, quartiles, table
from relattn.backends.cpu import operator, rotation
from relattn.backends.cpu.library import Kernels, kernels
from relattn.cli.bench.timing import Spread

HEADS, WIDTH, LENGTH, HELD = 8, 64, 16, 1023
ROUNDS = 301
LEAST = 1.0
"""The percentage of some call from which on a part or a file has a row."""
SETTING = (
    f"B = 1, H = {HEADS}, D = {WIDTH}, float32, one thread, no gradients but in `step`. `small`: causal, {LENGTH} "
    "positions, `RelativeEmbedding` with a row for every offset. `step`: the same with its gradients. `triton`: the "
    "same as `small` by the Triton backend, with tensors on the CPU, up to a driver that does nothing. Beside these "
    "three stands PyTorch's attention of that shape on the CPU. `token`: one token through a layer with ALiBi and its "
    f"cache of {HELD + 1:,} keys, beside the layer by hand of the study of decoding. `t5`: the attention of the first "
    f"layer of T5-small's encoder, {LENGTH} tokens, patched beside unpatched. Medians with quartiles of {ROUNDS} "
    "rounds in one process: in each the call, what stands beside it, and the call under cProfile. Each comes after a "
    "call like it, and is repeated until no other process takes the processor."
)
SHARES = (
    "Time, per cent of the call: medians, divided by their sum. A function has the time that it takes itself. A "
    "function of C counts for its caller unless it is PyTorch's; so an operator or an attribute of a tensor counts for "
    "the file that has it. Generated Python makes dataclasses and named tuples, and opens the arguments of Triton's "
    "kernels. What cProfile takes itself is subtracted by the number of functions entered, as if each cost the same: "
    f"so a small part may come out below zero. What is below {LEAST:g} % in every call is added up in the last row:\n"
)
Call = Callable[[], object]


class Pair(NamedTuple):
    """A call, and what stands beside it."""

    ours: Call
    beside: Call


def small(backend: str = "native") -> Pair:
    """A forward pass."""
    query, key, value = (torch.randn(1, HEADS, LENGTH, WIDTH, requires_grad=True) for _ in range(3))
    return Pair(attention(backend, LENGTH), lambda: F.scaled_dot_product_attention(query, key, value, is_causal=True))


def step() -> Pair:
    """The gradients of a sum of the outputs."""
    return Pair(*(partial(_backward, call) for call in small()))


def _backward(call: Callable[[], Any]) -> None:
    call().sum().backward()


def token() -> Pair:
    """A token of a decoder."""
    one = torch.randn(1, 1, HEADS * WIDTH)
    layer, by_hand = layer_decoding.layer("alibi", 1, HELD, one.dtype), layer_decoding.by_hand(1, HELD, one.dtype)
    return Pair(partial(layer, one), partial(by_hand, one))


def t5() -> Pair:
    """The attention of a layer of Hugging Face, patched and as it was."""
    from transformers import T5Config, T5EncoderModel
    from transformers.models.t5.modeling_t5 import T5Attention

    config = T5Config(vocab_size=32, d_model=HEADS * WIDTH, d_kv=WIDTH, num_heads=HEADS, num_layers=1)
    patched, original = (T5EncoderModel(config).eval() for _ in range(2))
    relattn.hf.patch(patched)
    tokens = torch.randn(1, LENGTH, HEADS * WIDTH)
    layers = (next(m for m in model.modules() if isinstance(m, T5Attention)) for model in (patched, original))
    return Pair(*(partial(layer, tokens) for layer in layers))


CASES = {"small": small, "step": step, "token": token, "triton": partial(small, "triton"), "t5": t5}
LOAD, INSTRUCTIONS = "load", "instructions"


def study(name: str) -> Study:
    """Every case, then the instructions of all."""
    measurements = {LOAD: load} | {case: partial(measured, case) for case in CASES} | {INSTRUCTIONS: counted}
    return Study(SETTING, measurements, markdown, threads=1, packages=("torch", "transformers", "triton"))


def load() -> Figures:
    """How many processes wanted to run, on average over the last minute."""
    return {"processes": round(os.getloadavg()[0], 1)}


@contextmanager
def prepared(case: str) -> Iterator[Pair]:
    """A case. Kernels are frames, for the profiler to see; Triton's launches end at a driver that does nothing."""
    from triton.runtime.driver import driver

    from measure.triton_launch import NoDriver
    from relattn.backends.triton.host import reasons

    native = kernels()
    assert isinstance(native, Kernels), native
    run = {name: partial(kernel, getattr(native, name)) for name in ("forward", "backward", "few", "rotate")}
    seen = cache(lambda: native._replace(**run))
    with (
        patch.object(operator, "kernels", seen),  # every module that runs kernels, by the name it has for them
        patch.object(rotation, "kernels", seen),
        patch.object(driver, "_active", NoDriver()),
        patch.object(reasons, "of_the_place", lambda device, index: []),
        torch.set_grad_enabled(case == "step"),
    ):
        yield CASES[case]()


def measured(case: str, rounds: int = ROUNDS) -> Figures:
    """Microseconds, the ratio to what stands beside it, the same of the profiled call, and percentages of the files."""
    profile = cProfile.Profile()
    with prepared(case) as pair:
        for call in pair * 2:  # the first fill what later calls find
            call()
        microseconds, ratio, slower, stats = zip(*(_round(pair, profile) for _ in range(rounds)), strict=True)
    shares = [shares_of(*both) for both in stats]
    times = {"microseconds": microseconds, "ratio": ratio, "slower": slower}
    typical = statistics.median(slower)
    files = {
        file: Spread.of([one.get(file, Share()).percent(typical) for one in shares]) for file in set().union(*shares)
    }
    whole = sum(spread.median for spread in files.values()) / 100
    return {name: figures_of(Spread.of(list(sample))) for name, sample in times.items()} | {
        "files": {file: figures_of(spread, whole) for file, spread in sorted(files.items())}
    }


def _round(pair: Pair, profile: cProfile.Profile) -> tuple[float, float, float, tuple[list, list]]:
    ours, beside = (_alone(_seconds, call) for call in pair)
    profiled, stats = _alone(partial(_profiled, profile), pair.ours)
    return ours * 1e6, ours / beside, profiled / ours, stats


def _alone(run: Callable[[Call], Answer], call: Call) -> Answer:
    """Right after a call; repeated until no other process takes the processor meanwhile."""
    while True:
        call()
        before = _interruptions()
        answer = run(call)
        if _interruptions() == before:
            return answer


def _interruptions() -> int:
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw


def _profiled(profile: cProfile.Profile, call: Call) -> tuple[float, tuple[list, list]]:
    """With the profile before and after: one that knows the functions takes less time than a new one."""
    before = profile.getstats()
    profile.enable()
    seconds = _seconds(call)
    profile.disable()
    return seconds, (before, profile.getstats())


def _seconds(call: Call) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def run() -> None:
    """Inside valgrind: every call and what stands beside it."""
    requests = ctypes.CDLL(os.environ["REQUESTS"])
    torch.set_num_threads(1)
    for case in CASES:
        with prepared(case) as pair:
            for name, call in pair._asdict().items():
                instructions.counted(f"{case} {name}", call, requests)


def counted() -> Figures:
    """Instructions of each call and of what stands beside it, by library."""
    found = {
        name: by_library(dump)
        for dump in instructions.dumps("call", __name__)
        for name, _ in instructions.ROW.findall(dump)
    }
    return {name: {library: count // instructions.CALLS for library, count in of.items()} for name, of in found.items()}


def markdown(figures: Mapping[str, Figures]) -> str:
    """Times, the parts of the time, the largest files, and the instructions; one column for each call."""
    found = [figures[case] for case in CASES]
    medians = [{file: median for file, (median, *_) in one["files"].items()} for one in found]
    widest = max(upper - lower for one in found for _, lower, upper in one["files"].values())
    ours, beside = ([figures[INSTRUCTIONS][f"{case} {which}"] for case in CASES] for which in Pair._fields)
    totals, others = ([sum(one.values()) for one in each] for each in (ours, beside))
    columns = {"": "---"} | dict.fromkeys(CASES, "---:")
    times = {"microseconds": "microseconds", "/ what stands beside it": "ratio", "with cProfile / without": "slower"}
    return "\n".join([
        f"In the minute before, {figures[LOAD]['processes']} processes wanted to run. The more there are, the more "
        "often the call finds caches emptied: microseconds are too many then. Instructions do not depend on it.\n",
        table(columns, [[title, *(quartiles(one[key]) for one in found)] for title, key in times.items()]),
        SHARES,
        table(columns, percentages(list(map(by_part, medians)))),
        f"The same by file of relattn. The quartiles of a file lie at most {widest:.1f} apart:\n",
        table(columns, percentages(medians)),
        "Instructions, and per cent of them by the library that has them; libc's are those of memory that anyone fills "
        "or frees, the kernels too. Valgrind does not support AVX-512, so the kernels for AVX2 run:\n",
        table(columns, [
            ["thousands", *(f"{total / 1e3:,.0f}" for total in totals)],
            ["/ what stands beside it", *(f"{a / b:.2f}" for a, b in zip(totals, others, strict=True))],
            *([name, *(f"{100 * one.get(name, 0) / total:.1f}" for one, total in zip(ours, totals, strict=True))]
              for name in LIBRARIES),
        ]),
    ])  # fmt: skip


def percentages(columns: Sequence[Mapping[str, float]]) -> list[list[str]]:
    """The rows of a table of percentages, the largest first."""
    names = {name for column in columns for name, found in column.items() if found >= LEAST}
    shown = sorted(names, key=lambda name: (-sum(column.get(name, 0.0) for column in columns), name))
    rest = [sum(found for name, found in column.items() if name not in names) for column in columns]
    return [
        *([name, *(f"{column[name]:.1f}" if name in column else "" for column in columns)] for name in shown),
        ["all others", *(f"{one:.1f}" for one in rest)],
    ]


if __name__ == "__main__":
    run()
