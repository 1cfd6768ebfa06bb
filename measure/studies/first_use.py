"""What the first use of relattn adds to `import torch`: a call of relative_attention, in a new process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from functools import partial

from measure.studies.study import Figures, Study, figures_of, quartiles, table
from relattn.cli.bench.timing import Spread

PROCESSES = 15
TORCH = "import torch"
CALL = (
    "import relattn; relattn.relative_attention(*[torch.ones(1, 4, 64, 32)] * 3, is_causal=True, encoding={encoding})"
)
CASES = {
    "no encoding": CALL.format(encoding=None),
    "relative": CALL.format(encoding="relattn.RelativeEmbedding(32, 64)"),
}
TIMED = """
import json, time
wall, cpu = time.perf_counter(), time.process_time()
{statements}
print(json.dumps([time.perf_counter() - wall, time.process_time() - cpu]))
"""
SETTING = (
    "Seconds that a process takes from its first statement to the end of its first call, less those of a process "
    f"beside it that imports PyTorch alone: medians of {PROCESSES} pairs taken in turn, with quartiles. Processor: the "
    "same in processor time, without children. The goal is less than 0.3 s."
)


def study(name: str) -> Study:
    """Every case."""
    return Study(SETTING, {case: partial(measured, statements) for case, statements in CASES.items()}, markdown)


def measured(statements: str, processes: int = PROCESSES) -> Figures:
    """Added seconds by the clock and of processor time: median and quartiles."""
    programs = (TORCH, f"{TORCH}; {statements}")
    for program in programs:
        seconds(program)  # loads the files into the machine's memory, and compiles files that were not compiled yet
    added = []
    for _ in range(processes):
        alone, with_call = map(seconds, programs)
        added.append([ours - theirs for theirs, ours in zip(alone, with_call, strict=True)])
    clock, processor = (figures_of(Spread.of(list(column))) for column in zip(*added, strict=True))
    return {"clock": clock, "processor": processor}


def seconds(statements: str) -> list[float]:
    """By the clock and of processor time, in a new process."""
    command = [sys.executable, "-c", TIMED.format(statements=statements)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def markdown(figures: Mapping[str, Figures]) -> str:
    """One row for each case."""
    columns = {"encoding": "---", "added, s": "---:", "added, processor, s": "---:"}
    return table(columns, [
        [name, *(quartiles(found[kind]) for kind in ("clock", "processor"))] for name, found in figures.items()
    ])  # fmt: skip
