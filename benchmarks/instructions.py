"""Instructions of one call, counted by callgrind: the same number on every run, also on a busy machine.

    python benchmarks/instructions.py                    a table of this tree
    python benchmarks/instructions.py --beside FOLDER    and of another checkout of relattn, its kernels built

B=1, H=8, D=64, float32, causal, one thread. Each cell is a tenth of the count for ten calls after a warm-up: Python,
PyTorch and kernels together. It needs valgrind, its headers and a C compiler. Valgrind does not support AVX-512, so the
kernels for AVX2 run.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

BATCH, HEADS, WIDTH, LONGEST = 1, 8, 64, 512
LENGTHS = (64, 16)
CALLS, WARM = 10, 5
ENCODINGS = ("none", "relative", "relative-heads", "shaw", "t5", "alibi", "rope", "transformer-xl")
REQUESTS = """
#include <valgrind/callgrind.h>
void start(void) { CALLGRIND_START_INSTRUMENTATION; CALLGRIND_ZERO_STATS; }
void stop(const char *name) { CALLGRIND_DUMP_STATS_AT(name); CALLGRIND_STOP_INSTRUMENTATION; }
"""
ROW = re.compile(r"desc: Trigger: Client Request: (.*)\n(?:.*\n)*?summary: (\d+)")


def run() -> None:
    """Inside valgrind: every case, announced to valgrind by its name."""
    import torch

    import relattn

    requests = ctypes.CDLL(os.environ["REQUESTS"])
    torch.set_num_threads(1)
    encodings = {
        "none": None,
        "relative": relattn.RelativeEmbedding(WIDTH, LONGEST, causal=True),
        "relative-heads": relattn.RelativeEmbedding(WIDTH, LONGEST, num_heads=HEADS, causal=True),
        "shaw": relattn.ShawEmbedding(WIDTH, 16),
        "t5": relattn.T5Bias(HEADS, bidirectional=False),
        "alibi": relattn.AlibiBias(HEADS),
        "rope": relattn.RotaryEmbedding(WIDTH),
        "transformer-xl": relattn.TransformerXLEmbedding(HEADS, WIDTH),
    }
    for name in ENCODINGS:
        for length in LENGTHS:
            for step in (False, True):
                call = call_of(encodings[name], length, step)
                counted(f"{name} {length} {'step' if step else 'forward'}", call, requests)


def call_of(encoding, length: int, step: bool) -> Callable[[], None]:
    """A forward pass without gradients, or a training step."""
    import torch

    import relattn

    generator = torch.Generator().manual_seed(length)
    shape = BATCH, HEADS, length, WIDTH
    tensors = [torch.randn(shape, generator=generator).requires_grad_(step) for _ in range(3)]
    leaves = [*tensors, *(encoding.parameters() if step and encoding is not None else ())]
    cotangent = torch.ones(shape)

    def call() -> None:
        with torch.set_grad_enabled(step):
            output = relattn.relative_attention(*tensors, encoding=encoding, is_causal=True, backend="native")
            if step:
                torch.autograd.grad(output, leaves, cotangent)

    return call


def counted(name: str, call: Callable[[], None], requests: ctypes.CDLL) -> None:
    for _ in range(WARM):
        call()
    requests.start()
    for _ in range(CALLS):
        call()
    requests.stop(name.encode())


def table(tree: Path) -> dict[str, float]:
    """Instructions of a call in millions, by case."""
    with tempfile.TemporaryDirectory() as folder:
        library, out = Path(folder, "requests.so"), Path(folder, "out")
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, "-xc", "-"], input=REQUESTS, text=True, check=True)
        environment = os.environ | {
            "REQUESTS": str(library), "PYTHONPATH": str(tree / "src"), "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        command = ["valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={out}"]
        subprocess.run(
            [*command, sys.executable, __file__, "--inside"], env=environment, check=True, capture_output=True
        )
        found = {}
        for file in sorted(Path(folder).glob("out.*"), key=lambda file: int(file.suffix[1:])):
            for name, instructions in ROW.findall(file.read_text()):
                found[name] = int(instructions) / CALLS / 1e6
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--beside", type=Path, metavar="FOLDER")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        run()
        return
    ours = table(Path(__file__).parent.parent)
    other = table(options.beside) if options.beside else {}
    print("backend native, millions of instructions a call\n")
    print("| call | here | there | here / there |\n|---|---:|---:|---:|" if other else "| call | here |\n|---|---:|")
    for name, here in ours.items():
        there = f" {other[name]:.3f} | {here / other[name]:.3f} |" if other else ""
        print(f"| {name} | {here:.3f} |{there}")


if __name__ == "__main__":
    main()
