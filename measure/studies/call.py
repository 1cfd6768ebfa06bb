"""Where the time and the instructions of a call go: five calls, each divided among the parts that take them."""

from __future__ import annotations

import cProfile
import ctypes
import os
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
import torch.nn.functional as F

import relattn.hf
from measure.frames import FOLDER, attention
from measure.studies import instructions, layer_decoding
from measure.studies.parts import LIBRARIES, Share, by_library, by_part, kernel, largest, shares_of
from measure.studies.study import Figures, Study, figures_of, quartiles, table
from relattn.backends.cpu import operator, rotation
from relattn.backends.cpu.library import Kernels, kernels
from relattn.cli.bench.timing import Spread

HEADS, WIDTH, LENGTH, HELD = 8, 64, 16, 1023
ROUNDS, CALLS = 301, 2
LEAST = 1.0
"""The percentage of some call from which on a part or a file has a row."""
QUIET = 0.5
"""The most processes that want to run on a quiet machine."""
SETTING = (
    f"B = 1, H = {HEADS}, D = {WIDTH}, float32, one thread. Small, step and triton: causal, {LENGTH} positions, "
    "`RelativeEmbedding` with a row for every offset; `step` is forward and backward; `triton` is a forward call whose "
    "tensors are on the CPU, and the driver does nothing. Beside them PyTorch's attention of that shape on the CPU. "
    f"Token: one token through a layer with ALiBi and its cache of {HELD + 1:,} keys, beside the layer by hand of the "
    f"study of decoding. T5: the attention of a patched T5-small encoder's first layer, {LENGTH} tokens, beside the "
    f"layer as it was. All but the step without gradients. Medians with quartiles of {ROUNDS} rounds in one process: "
    f"in each {CALLS} calls, {CALLS} of what stands beside it, and {CALLS} by cProfile, whose cost is taken off."
)


class Pair(NamedTuple):
    """A call, and what stands beside it."""

    ours: Callable[[], object]
    beside: Callable[[], object]


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
    return Pair(lambda: layer(one), lambda: by_hand(one))


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
INSTRUCTIONS, WHERE = "instructions", "where"


def study(name: str) -> Study:
    """Every case, then the instructions of all."""
    measurements = {WHERE: where} | {case: partial(measured, case) for case in CASES} | {INSTRUCTIONS: counted}
    return Study(SETTING, measurements, markdown, threads=1, packages=("torch", "transformers", "triton"))


def where() -> Figures:
    """The commit that last changed relattn, and how many processes the machine had to run."""
    log = subprocess.run(
        ["git", "log", "-1", "--format=%h", "--", FOLDER], cwd=FOLDER, check=True, capture_output=True, text=True
    )
    return {"commit": log.stdout.strip(), "load": round(os.getloadavg()[0], 1)}


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
        patch.object(driver, "_active", NoDriver()),
        patch.object(operator, "kernels", seen),
        patch.object(rotation, "kernels", seen),
        patch.object(reasons, "of_the_place", lambda device, index: []),
        torch.set_grad_enabled(case == "step"),
    ):
        yield CASES[case]()


def measured(case: str, rounds: int = ROUNDS) -> Figures:
    """Microseconds, the ratio to what stands beside it, the same of the profiled call, and percentages of the parts."""
    with prepared(case) as pair:
        for call in pair * 2:  # the first fill what later calls find
            call()
        found = [_round(pair) for _ in range(rounds)]
    microseconds, ratio, slower, files = zip(*found, strict=True)
    return {
        "microseconds": _spread(microseconds),
        "ratio": _spread(ratio),
        "slower": _spread(slower),
        "parts": _percentages(list(map(by_part, files)), statistics.median(slower)),
        "files": _percentages(files, statistics.median(slower)),
    }


def _percentages(rounds: Sequence[Mapping[str, Share]], slower: float) -> dict[str, list[float]]:
    """Of what is in every round."""
    names = sorted(set.intersection(*map(set, rounds)))
    return {name: _spread([one[name].percent(slower) for one in rounds]) for name in names}


def _spread(sample: Iterable[float]) -> list[float]:
    return figures_of(Spread.of(list(sample)))


def _round(pair: Pair) -> tuple[float, float, float, dict[str, Share]]:
    ours, beside = map(_seconds, pair)
    profile = cProfile.Profile()
    profile.enable()
    profiled = _seconds(pair.ours)
    profile.disable()
    return ours / CALLS * 1e6, ours / beside, profiled / ours, shares_of(profile)


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    for _ in range(CALLS):
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
    dumps = instructions.dumps("call", __name__)
    found = {name: by_library(dump) for dump in dumps for name, _ in instructions.ROW.findall(dump)}
    return {name: {library: count // instructions.CALLS for library, count in of.items()} for name, of in found.items()}


def markdown(figures: Mapping[str, Figures]) -> str:
    """Times, the parts of the time, the largest files, and the instructions; one column for each call."""
    place, found = figures[WHERE], [figures[case] for case in CASES]
    ours, beside = ([figures[INSTRUCTIONS][f"{case} {which}"] for case in CASES] for which in Pair._fields)
    totals, others = ([sum(one.values()) for one in each] for each in (ours, beside))
    busy = place["load"] > QUIET
    columns = {"": "---"} | dict.fromkeys(CASES, "---:")
    times = {"microseconds": "microseconds", "/ what stands beside it": "ratio", "with cProfile / without": "slower"}
    return "\n".join([
        f"The code is that of commit {place['commit']}. In the minute before, {place['load']} processes wanted to run: "
        + ("the machine was busy, so there are too many microseconds, and ratios are less certain. " * busy)
        + ("the machine was quiet. " * (not busy))
        + "Instructions do not depend on it.\n",
        table(columns, [[title, *(quartiles(one[key]) for one in found)] for title, key in times.items()]),
        f"Time, per cent of the call. What is below {LEAST:g} % in every call is added up in the last row:\n",
        table(columns, percentages([one["parts"] for one in found])),
        "The same by file of relattn:\n",
        table(columns, percentages([one["files"] for one in found])),
        "Instructions, and per cent of them by the library that has them. Valgrind does not support AVX-512, so the "
        "kernels for AVX2 run:\n",
        table(columns, [
            ["thousands", *(f"{total / 1e3:,.0f}" for total in totals)],
            ["/ what stands beside it", *(f"{a / b:.2f}" for a, b in zip(totals, others, strict=True))],
            *([name, *(f"{100 * one.get(name, 0) / total:.1f}" for one, total in zip(ours, totals, strict=True))]
              for name in LIBRARIES),
        ]),
    ])  # fmt: skip


def percentages(columns: Sequence[Mapping[str, Sequence[float]]]) -> list[list[str]]:
    """The rows of a table of percentages with quartiles."""
    names = largest({name: found[0] for name, found in column.items()} for column in columns)
    shown = [name for name in names if max(column.get(name, [0.0])[0] for column in columns) >= LEAST]
    rest = [sum(found[0] for name, found in column.items() if name not in shown) for column in columns]
    return [
        *([name, *(_percentage(column.get(name)) for column in columns)] for name in shown),
        ["all others", *(f"{one:.1f}" for one in rest)],
    ]


def _percentage(found: Sequence[float] | None) -> str:
    return "" if found is None else "{:.1f} [{:.1f} {:.1f}]".format(*found)


if __name__ == "__main__":
    run()
