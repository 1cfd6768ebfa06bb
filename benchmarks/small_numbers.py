"""Why the tiled backend computes its softmax in base 2 and makes tiny weights zero (`relattn.backends.tiled.base_two`).

It times exp and exp2 at numbers of one kind, and a matrix product with a tenth of one side tiny, each divided by the
time at ordinary numbers. `python benchmarks/small_numbers.py` prints two Markdown tables.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

SHAPE = (2, 128, 2048)
WIDTH = 64
TURNS = 30
EXPONENTS = {"ordinary, -10": -10.0, "far, -1000": -1000.0, "hidden, -inf": -torch.inf, "subnormal, -95": -95.0}
WEIGHTS = {"ordinary, 0.1": 0.1, "products subnormal, 1e-37": 1e-37, "subnormal, 1e-39": 1e-39}


def seconds(call: Callable[[], object]) -> float:
    """The median of a few turns on one thread."""
    taken = []
    for _ in range(TURNS):
        before = time.thread_time_ns()
        call()
        taken.append(time.thread_time_ns() - before)
    return statistics.median(taken)


def main() -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, one thread, float32\n")
    print("| exponent | exp | exp2 |\n|---|---|---|")
    out = torch.empty(SHAPE)
    base = {}
    for name, number in EXPONENTS.items():
        ratios = []
        for function, factor in ((torch.exp, 1.0), (torch.exp2, 1.4427)):
            given = torch.full(SHAPE, number * factor)
            taken = seconds(lambda function=function, given=given: function(given, out=out))
            ratios.append(taken / base.setdefault(function, taken))
        print(f"| {name} | {ratios[0]:.1f} | {ratios[1]:.1f} |")
    print("\n| a tenth of the weights | weights @ values |\n|---|---|")
    value, first = torch.randn(SHAPE[0], SHAPE[2], WIDTH), None
    for name, number in WEIGHTS.items():
        weights = torch.full(SHAPE, 0.1)
        weights[..., : SHAPE[2] // 10] = number
        taken = seconds(lambda weights=weights: torch.bmm(weights, value))
        first = first or taken
        print(f"| {name} | {taken / first:.1f} |")


if __name__ == "__main__":
    main()
