"""The native backend beside PyTorch's own attention without any encoding: the ratio of their times, call by call.

One sequence, H = 8, D = 64, float32, unless a row says otherwise. PyTorch's attention has the same shape, dtype and
causality. Before it is timed, every workload's answer and gradients are compared with float64 (`relattn.bench.truth`).
Each cell is the median ratio of at least fifteen pairs (`relattn.bench.timing`: rounds that spread over more than 10 %
are repeated, and marked with ± if none was steadier). The last columns are the median over the lengths, the goal, and
whether it is met: by the median, and by every length within 1.1 times the goal.

    python benchmarks/native.py encodings         rows `transformer-xl` and `disentangled`: the rows of the tables are
                                                  projected beforehand, and a training step gives the gradients of these
                                                  rows and of r; `with its projection`: both are in the time
    python benchmarks/native.py decoding          one token; keys in the cache, rope's are turned already
    python benchmarks/native.py small             the whole call with backend="auto", one thread, no gradients
    python benchmarks/native.py window            times / (PyTorch's attention without a window * the window's share of
                                                  its pairs)
    python benchmarks/native.py batches heads     short sequences in a batch; one long sequence with one head

Several tables may be named; without a name all are printed. `--rows relative,bfloat16`: only rows whose names hold one
of these.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
from goals import TABLES, TOLERANCE, Row, Table

from relattn.bench.candidates import CANDIDATES, Candidate
from relattn.bench.ours import ours
from relattn.bench.run import timed
from relattn.bench.timing import Timing
from relattn.bench.truth import check
from relattn.bench.workload import Workload
from relattn.support.machine import machine


def candidate(backend: str) -> Candidate:
    """A backend of ours, or "auto"."""
    native = CANDIDATES["relattn native"]
    return native if backend == "native" else replace(native, prepare=partial(ours, backend=backend))


def checked(who: Candidate, workload: Workload) -> None:
    """Stop where the answer or a gradient is wrong."""
    found = check(who, workload)
    assert found.right, (workload, found)


def share(workload: Workload) -> float:
    """The visible pairs divided by those of the same attention without a window."""
    return workload.pairs / replace(workload, window=None).pairs


def verdict(row: Row, ratios: dict[int, float]) -> tuple[str, str]:
    """The goal, and whether the ratios meet it."""
    if row.goal is None:
        return "", ""
    if isinstance(row.goal, dict):
        bounds = {length: row.goal[length] for length in ratios}
        said = " / ".join(f"{bound:g}" for bound in bounds.values())
        late = [length for length, bound in bounds.items() if ratios[length] > bound]
        return said, f"missed at {', '.join(map(str, late))}" if late else "met"
    late = [length for length, ratio in ratios.items() if ratio > TOLERANCE * row.goal]
    median = statistics.median(ratios.values())
    missed = [f"by {median / row.goal - 1:.0%}"] if median > row.goal else []
    missed += [f"at {', '.join(map(str, late))}"] if late else []
    return f"{row.goal:.2f}", f"missed {' and '.join(missed)}" if missed else "met"


def show(table: Table, lengths: Sequence[int], names: Sequence[str], seconds: float) -> None:
    """Measure a table and print it, row by row."""
    who = candidate(table.backend)
    print(f"| | | {' | '.join(f'L={length}' for length in lengths)} | median | goal | |")
    print(f"|---|---|{'---:|' * (len(lengths) + 2)}---|")
    for row in table.rows:
        if not any(part in row.name for part in names):
            continue
        checked(who, row.workload)
        timings = {length: timed(who, row.workload.at(length), seconds) for length in lengths}
        shares = {length: share(row.workload.at(length)) for length in lengths}
        ratios = {length: timing.ratio.median / shares[length] for length, timing in timings.items()}
        cells = [f"{ratio:.2f}{_doubt(timings[length], shares[length])}" for length, ratio in ratios.items()]
        median = "" if isinstance(row.goal, dict) else f"{statistics.median(ratios.values()):.2f}"
        cells += [median, *verdict(row, ratios)]
        what = f"{row.workload.mode}{', causal' * (row.workload.causal and not row.workload.decoding)}"
        print(f"| {row.name} | {what} | {' | '.join(cells)} |", flush=True)


def _doubt(timing: Timing, share: float) -> str:
    """Half the distance of the quartiles, as `Timing.doubt`, in units of the cell."""
    return "" if timing.is_steady else f" ±{(timing.ratio.upper - timing.ratio.lower) / 2 / share:.2f}"


def header(threads: int) -> str:
    """The machine and versions of a table."""
    return f"torch {torch.__version__}, {machine()['processor']}, threads: {threads}"


def integers(text: str) -> tuple[int, ...]:
    """512,1024 as numbers."""
    return tuple(map(int, text.split(",")))


def main() -> None:
    """Print the tables that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=f"{', '.join(TABLES)}; all where none is given")
    parser.add_argument("--threads", type=int, help="those of the goals unless given: 2, for small calls 1")
    parser.add_argument("--lengths", type=integers, help="in place of the table's own")
    parser.add_argument("--rows", default="", help="parts of the names of rows")
    parser.add_argument("--seconds", type=float, default=1.0, help="for the pairs of one cell, fifteen at least")
    given = parser.parse_args()
    if unknown := set(given.tables) - set(TABLES):
        parser.error(f"no table {', '.join(unknown)}; there are {', '.join(TABLES)}")
    for name in given.tables or TABLES:
        table = TABLES[name]
        threads = given.threads or table.threads
        torch.set_num_threads(threads)
        print(f"\n{name}: {header(threads)}\n")
        show(table, given.lengths or table.lengths, given.rows.split(","), given.seconds)


if __name__ == "__main__":
    main()
