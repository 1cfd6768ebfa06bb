"""The native backend beside PyTorch's own attention without any encoding: the ratio of their times, call by call.

One sequence, H = 8, D = 64, float32. Each cell is the median ratio of at least fifteen pairs (`relattn.bench.timing`:
rounds that spread over more than 10 % are repeated, and marked with ± where none was steadier). The last columns are
the median over the lengths, and the goal. `python benchmarks/native.py [threads] [lengths]`, as in 2 512,1024.
"""

from __future__ import annotations

import statistics
import sys

import torch

from relattn.bench.candidates import CANDIDATES
from relattn.bench.run import timed
from relattn.bench.truth import check
from relattn.bench.workload import FORWARD, TRAINING, Workload
from relattn.support.machine import machine

NATIVE = CANDIDATES["relattn native"]
SECONDS = 1.0
GOALS = {  # forward full, forward causal, training step full, training step causal
    "none": (0.80, 0.65, 0.80, 0.65),
    "rope": (0.80, 0.65, 0.80, 0.65),
    "relative": (1.15, 0.95, 1.15, 0.95),
    "relative-heads": (1.15, 0.95, 1.15, 0.95),
    "t5": (0.85, 0.65, 0.80, 0.65),
    "alibi": (0.85, 0.65, 0.80, 0.65),
    "shaw-keys": (0.90, 0.70, 1.0, 0.8),
    "shaw": (1.10, 0.85, 1.2, 0.95),
    "transformer-xl": (1.15, 0.95, 1.2, 1.0),
}
COLUMNS = [(FORWARD, False), (FORWARD, True), (TRAINING, False), (TRAINING, True)]


def main(threads: int = 2, lengths: tuple[int, ...] = (512, 1024, 2048, 4096)) -> None:
    """Print the table, row by row."""
    torch.set_num_threads(threads)
    print(f"torch {torch.__version__}, {machine()['processor']}, threads: {threads}\n")
    print(f"| encoding | | {' | '.join(f'L={length}' for length in lengths)} | median | goal |")
    print(f"|---|---|{'---:|' * (len(lengths) + 2)}")
    for encoding, goals in GOALS.items():
        for (mode, causal), goal in zip(COLUMNS, goals, strict=True):
            workloads = [Workload(encoding, length, 64, 8, causal, mode) for length in lengths]
            found = check(NATIVE, workloads[0])
            assert found.right, found
            timings = [timed(NATIVE, workload, SECONDS) for workload in workloads]
            median = statistics.median(timing.ratio.median for timing in timings)
            row = " | ".join(f"{timing.ratio.median:.2f}{timing.doubt}" for timing in timings)
            print(f"| {encoding} | {mode}{', causal' * causal} | {row} | {median:.2f} | {goal:.2f} |", flush=True)


if __name__ == "__main__":
    main(
        int(sys.argv[1]) if len(sys.argv) > 1 else 2,
        tuple(map(int, sys.argv[2].split(","))) if len(sys.argv) > 2 else (512, 1024, 2048, 4096),
    )
