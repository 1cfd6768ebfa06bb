"""Does a pair of query and key cost the same at every length? The native backend beside itself at one length.

D = 64, float32, B = 1, two threads. Each cell is the time per visible pair and head at a length, divided by that at the
reference length. The last column but two has the latter in picoseconds. It is the median of at least fifteen pairs
taken in turn (`relattn.bench.timing`; ± where they spread over more than 10 %). The last columns are the largest cell
divided by the smallest, and whether it is within the goal of 1.10. Without a window H = 2, so that 32,768 takes
seconds. With the window of 256 to each side H = 8. Answers and gradients are first compared with float64.

    python benchmarks/cost_per_pair.py full            from 1,024 to 32,768, beside 4,096
    python benchmarks/cost_per_pair.py window          from 2,048 to 32,768, beside 8,192: linear in the length
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import torch
from goals import Row, in_columns, of_encoding
from native import candidate, checked, header, integers

from relattn.bench.case import make_case, step
from relattn.bench.timing import Timing, interleaved
from relattn.bench.workload import Workload

GOAL = 1.10
NATIVE = candidate("native")
RELATIVE = of_encoding("relative")
TABLES = {
    "full": (in_columns("relative, H = 2", replace(RELATIVE, heads=2)), 4096, (1024, 2048, 8192, 16384, 32768)),
    "window": (in_columns("relative, window 256", replace(RELATIVE, window=256)), 8192, (2048, 4096, 16384, 32768)),
}
"""The rows, the reference length and the others."""


def beside(workload: Workload, reference: int, length: int, seconds: float) -> Timing:
    """A length beside the reference."""
    cases = [make_case(workload.at(each)) for each in (reference, length)]
    calls = [NATIVE.prepare(case) for case in cases]
    return interleaved(lambda: step(cases[0], calls[0]), lambda: step(cases[1], calls[1]), seconds, "cpu")


def show(rows: list[Row], reference: int, lengths: tuple[int, ...], seconds: float) -> None:
    """Measure a table and print it, row by row."""
    print(f"| | | {' | '.join(f'{length:,}' for length in lengths)} | ps at {reference:,} | largest / smallest | |")
    print(f"|---|---|{'---:|' * (len(lengths) + 2)}---|")
    for name, workload, _ in rows:
        checked(NATIVE, workload)
        ratios, cells, base = [1.0], [], 0.0
        for length in lengths:
            timing, factor = beside(workload, reference, length, seconds), workload.at(reference).pairs
            factor /= workload.at(length).pairs
            ratios.append(timing.ratio.median * factor)
            base = timing.seconds.median / timing.ratio.median / workload.at(reference).pairs / workload.heads
            doubt = "" if timing.is_steady else f" ±{(timing.ratio.upper - timing.ratio.lower) / 2 * factor:.2f}"
            cells.append(f"{ratios[-1]:.2f}{doubt}")
        spread = max(ratios) / min(ratios)
        cells += [f"{1e12 * base:.0f}", f"{spread:.2f}", "met" if spread <= GOAL else "missed"]
        what = f"{workload.mode}{', causal' * workload.causal}"
        print(f"| {name} | {what} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    """Print the tables that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=f"{', '.join(TABLES)}; both where none is given")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--lengths", type=integers, help="beside the reference; in place of the table's own")
    parser.add_argument("--reference", type=int, help="in place of the table's own")
    parser.add_argument("--modes", default="forward,training")
    parser.add_argument("--seconds", type=float, default=1.0, help="for the pairs of one cell, fifteen at least")
    given = parser.parse_args()
    if unknown := set(given.tables) - set(TABLES):
        parser.error(f"no table {', '.join(unknown)}; there are {', '.join(TABLES)}")
    torch.set_num_threads(given.threads)
    for name in given.tables or TABLES:
        rows, reference, lengths = TABLES[name]
        print(f"\n{name}: {header(given.threads)}\n")
        rows = [row for row in rows if row.workload.mode in given.modes.split(",")]
        show(rows, given.reference or reference, given.lengths or lengths, given.seconds)


if __name__ == "__main__":
    main()
