"""Instructions of one call, counted by callgrind: the same number on every run, also on a busy machine.

It needs valgrind, its headers and a C compiler.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch

import relattn
from measure.studies.study import Figures, Study, table
from relattn.encodings.catalogue import CATALOGUE, Layer

BATCH, HEADS, WIDTH, LONGEST = 1, 8, 64, 512
LENGTHS = (64, 16)
CALLS, WARM = 10, 5
ENCODINGS = ("none", "relative", "relative-heads", "shaw", "t5", "alibi", "rope", "transformer-xl")
SETTING = (
    f"Millions of instructions of a call with the native backend: Python, PyTorch and kernels together. B = {BATCH}, "
    f"H = {HEADS}, D = {WIDTH}, float32, causal, one thread; a tenth of the count for ten calls after a warm-up. "
    "Valgrind does not support AVX-512, so the kernels for AVX2 run."
)
NEEDED = "study: got {!r} without {}; expected valgrind, its headers and a C compiler; install them"
REQUESTS = """
#include <valgrind/callgrind.h>
void start(void) { CALLGRIND_START_INSTRUMENTATION; CALLGRIND_ZERO_STATS; }
void stop(const char *name) { CALLGRIND_DUMP_STATS_AT(name); CALLGRIND_STOP_INSTRUMENTATION; }
"""
ROW = re.compile(r"desc: Trigger: Client Request: (.*)\n(?:.*\n)*?summary: (\d+)")


def run() -> None:
    """Inside valgrind: every case, announced to valgrind by its name."""
    requests = ctypes.CDLL(os.environ["REQUESTS"])
    torch.set_num_threads(1)
    layer = Layer(HEADS, WIDTH, LONGEST, causal=True)
    for name in ENCODINGS:
        for length in LENGTHS:
            for step in (False, True):
                call = call_of(CATALOGUE[name].build(layer), length, step)
                counted(f"{name} {length} {'step' if step else 'forward'}", call, requests)


def call_of(encoding, length: int, step: bool) -> Callable[[], None]:
    """A forward pass without gradients, or a training step."""
    generator = torch.Generator().manual_seed(length)
    shape = BATCH, HEADS, length, WIDTH
    tensors = [torch.randn(shape, generator=generator).requires_grad_(step) for _ in range(3)]
    query, key, value = tensors
    leaves = [*tensors, *(encoding.parameters() if step and encoding is not None else ())]
    cotangent = torch.ones(shape)

    def call() -> None:
        with torch.set_grad_enabled(step):
            output = relattn.relative_attention(query, key, value, encoding=encoding, is_causal=True, backend="native")
            if step:
                torch.autograd.grad(output, leaves, cotangent)

    return call


def counted(name: str, call: Callable[[], None], requests: ctypes.CDLL) -> None:
    """A case: its calls after a warm-up, under its name."""
    for _ in range(WARM):
        call()
    requests.start()
    for _ in range(CALLS):
        call()
    requests.stop(name.encode())


def measured() -> Figures:
    """Instructions of a call in millions, by case.

    Raises FileNotFoundError: as `dumps`.
    """
    return {
        name: round(int(total) / CALLS / 1e6, 3)
        for dump in dumps("instructions", __name__)
        for name, total in ROW.findall(dump)
    }


def dumps(study: str, module: str) -> Iterator[str]:
    """What callgrind writes for each case of a module of that study, which runs as a program and counts its cases.

    Raises FileNotFoundError: where valgrind, its headers or a C compiler are missing.
    """
    for needed in ("valgrind", "cc"):
        if shutil.which(needed) is None:
            raise FileNotFoundError(NEEDED.format(study, needed))
    with tempfile.TemporaryDirectory() as folder:
        library, out = Path(folder, "requests.so"), Path(folder, "out")
        built = ["cc", "-shared", "-fPIC", "-o", library, "-xc", "-"]
        if subprocess.run(built, input=REQUESTS, text=True, capture_output=True).returncode:
            raise FileNotFoundError(NEEDED.format(study, "valgrind's headers"))
        environment = os.environ | {
            "REQUESTS": str(library), "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        command = ["valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={out}"]
        subprocess.run([*command, sys.executable, "-m", module], env=environment, check=True, capture_output=True)
        for file in sorted(Path(folder).glob("out.*"), key=lambda file: int(file.suffix[1:])):
            yield file.read_text()


def study(name: str) -> Study:
    """All cases, counted in one process."""
    return Study(SETTING, {"millions": measured}, markdown, threads=1)


def markdown(figures: Mapping[str, Figures]) -> str:
    """One row for each encoding."""
    kinds = [(length, kind) for length in LENGTHS for kind in ("forward", "step")]
    columns = {"encoding": "---"} | {f"L={length}, {kind}": "---:" for length, kind in kinds}
    found = figures["millions"]
    return table(columns, [
        [name, *(f"{found[f'{name} {length} {kind}']:.2f}" for length, kind in kinds)] for name in ENCODINGS
    ])  # fmt: skip


if __name__ == "__main__":
    run()
