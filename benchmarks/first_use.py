"""What the first use of relattn adds to `import torch`: a call of relative_attention, in a new process.

Processes that import only torch take turns with processes that also import relattn and call it. So other work on the
machine affects both. Each times itself from its first statement on, by the clock and in processor time (its own,
without children). `python benchmarks/first_use.py [processes]` prints a table of the medians: 15 processes of each kind
by default. The goal is less than 0.3 s.
"""

from __future__ import annotations

import json
import platform
import statistics
import subprocess
import sys

import torch

PROCESSES = 15
TORCH = "import torch"
CALL = (
    "import relattn; relattn.relative_attention(*[torch.ones(1, 4, 64, 32)] * 3, is_causal=True, encoding={encoding})"
)
CASES = {
    "relattn, no encoding": CALL.format(encoding=None),
    "relattn, relative": CALL.format(encoding="relattn.RelativeEmbedding(32, 64)"),
}
TIMED = """
import json, time
wall, cpu = time.perf_counter(), time.process_time()
{statements}
print(json.dumps([time.perf_counter() - wall, time.process_time() - cpu]))
"""


def seconds(statements: str) -> tuple[float, float]:
    """Wall and processor time of the statements in a fresh process."""
    command = [sys.executable, "-c", TIMED.format(statements=statements)]
    wall, cpu = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return wall, cpu


def main(processes: int = PROCESSES) -> None:
    """Time every case beside torch alone and print the table."""
    programs = {"torch alone": TORCH} | {name: f"{TORCH}; {call}" for name, call in CASES.items()}
    for statements in programs.values():
        seconds(statements)  # loads the files into the machine's memory, and compiles files that were not compiled yet
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in programs}
    for _ in range(processes):
        for name, statements in programs.items():
            times[name].append(seconds(statements))
    medians = {name: [statistics.median(column) for column in zip(*rows, strict=True)] for name, rows in times.items()}
    print(
        f"torch {torch.__version__}, {platform.processor() or platform.machine()}, {processes} processes of each kind"
    )
    print("\n| process | wall, s | processor, s | added wall, s | added processor, s |\n|---|---|---|---|---|")
    base_wall, base_cpu = medians["torch alone"]
    for name, (wall, cpu) in medians.items():
        print(f"| {name} | {wall:.2f} | {cpu:.2f} | {wall - base_wall:.2f} | {cpu - base_cpu:.2f} |")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
