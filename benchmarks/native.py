"""The native backend beside PyTorch's own attention without any encoding: the ratio of their times, call by call.

One sequence, H = 8, D = 64, float32, where a row says nothing else; PyTorch's attention has the same shape and dtype.
Each cell is the median ratio of at least fifteen pairs (`relattn.bench.timing`: rounds that spread over more than 10 %
are repeated, and marked with ± where none was steadier). The last columns are the median over the lengths, and the
goal. `python benchmarks/native.py [threads] [lengths] [rows]`, as in 2 512,1024 relative,bfloat16.
"""

from __future__ import annotations

import statistics
import sys
from dataclasses import replace
from typing import NamedTuple

import torch

from relattn.bench.candidates import CANDIDATES
from relattn.bench.run import timed
from relattn.bench.truth import check
from relattn.bench.workload import FORWARD, TRAINING, Workload
from relattn.support.machine import machine

NATIVE = CANDIDATES["relattn native"]
SECONDS = 1.0
PLAIN = Workload("none", 1, 64, 8, False, FORWARD)
RELATIVE = replace(PLAIN, encoding="relative")


class Row(NamedTuple):
    """What is measured, and the goals: forward and training step, full; the same, causal."""

    workload: Workload
    goals: tuple[float, ...]


ROWS = {
    "none": Row(PLAIN, (0.80, 0.80, 0.65, 0.65)),
    "rope": Row(replace(PLAIN, encoding="rope"), (0.80, 0.80, 0.65, 0.65)),
    "relative": Row(RELATIVE, (1.15, 1.15, 0.95, 0.95)),
    "relative-heads": Row(replace(PLAIN, encoding="relative-heads"), (1.15, 1.15, 0.95, 0.95)),
    "t5": Row(replace(PLAIN, encoding="t5"), (0.85, 0.80, 0.65, 0.65)),
    "alibi": Row(replace(PLAIN, encoding="alibi"), (0.85, 0.80, 0.65, 0.65)),
    "shaw-keys": Row(replace(PLAIN, encoding="shaw-keys"), (0.90, 1.0, 0.70, 0.8)),
    "shaw": Row(replace(PLAIN, encoding="shaw"), (1.10, 1.2, 0.85, 0.95)),
    "key-query": Row(replace(PLAIN, encoding="key-query"), (1.5, 1.6, 1.2, 1.3)),
    "transformer-xl": Row(replace(PLAIN, encoding="transformer-xl"), (1.15, 1.2, 0.95, 1.0)),
    "relative, D = 32": Row(replace(RELATIVE, head_dim=32), (1.05, 1.05)),
    "relative, D = 128": Row(replace(RELATIVE, head_dim=128), (1.3, 1.3)),
    "relative, bfloat16": Row(replace(RELATIVE, dtype="bfloat16"), (0.9, 1.0)),
}
COLUMNS = [(FORWARD, False), (TRAINING, False), (FORWARD, True), (TRAINING, True)]


def main(threads: int = 2, lengths: tuple[int, ...] = (512, 1024, 2048, 4096), names: str = "") -> None:
    """Print the table, row by row; of the rows whose names hold one of `names`."""
    torch.set_num_threads(threads)
    print(f"torch {torch.__version__}, {machine()['processor']}, threads: {threads}\n")
    print(f"| encoding | | {' | '.join(f'L={length}' for length in lengths)} | median | goal |")
    print(f"|---|---|{'---:|' * (len(lengths) + 2)}")
    for name, row in ROWS.items():
        if not any(part in name for part in names.split(",")):
            continue
        for (mode, causal), goal in zip(COLUMNS, row.goals, strict=False):
            workload = replace(row.workload, mode=mode, causal=causal)
            found = check(NATIVE, workload)
            assert found.right, found
            timings = [timed(NATIVE, workload.at(length), SECONDS) for length in lengths]
            median = statistics.median(timing.ratio.median for timing in timings)
            cells = " | ".join(f"{timing.ratio.median:.2f}{timing.doubt}" for timing in timings)
            print(f"| {name} | {mode}{', causal' * causal} | {cells} | {median:.2f} | {goal:.2f} |", flush=True)


if __name__ == "__main__":
    given = sys.argv[1:]
    main(
        int(given[0]) if given else 2,
        tuple(map(int, given[1].split(","))) if len(given) > 1 else (512, 1024, 2048, 4096),
        given[2] if len(given) > 2 else "",
    )
