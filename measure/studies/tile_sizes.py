"""How large should the tiles of the tiled backend be? The sweep from which `backends/tiled/sizes.py` was chosen."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from measure.candidates import CANDIDATES
from measure.studies.study import Figures, Study, figures_of, shown, table
from relattn.backends.tiled import operator
from relattn.backends.tiled.sizes import TileSizes
from relattn.cli.bench.run import timed
from relattn.cli.bench.workload import FORWARD, TRAINING, Workload

SECONDS = 0.2
QUERIES, KEYS, PAIRS = (64, 128, 256), (512, 1024, 2048, 4096), (2**18, 2**19, 2**20, 2**21)
BEST = 4
"""How many of the best sizes are shown, beside the worst."""
WORKLOADS = [
    Workload("relative", length, 64, heads, causal, FORWARD, batch=batch)
    for batch, heads, length, causal in (
        (1, 8, 2048, False), (1, 8, 4096, False), (1, 8, 4096, True), (1, 1, 4096, False), (4, 4, 1024, True),
    )
]  # fmt: skip
SETTING = (
    "The tiled backend at every size of tiles / PyTorch's own attention without any encoding: a table with a row for "
    "every offset, float32, D = 64. Medians of at least fifteen pairs taken in turn; ± marks quartiles that lie more "
    "than 10 % apart. The table shows the four best sizes of each shape, and the worst."
)


def study(name: str) -> Study:
    """Every shape."""
    return Study(SETTING, {_shape(each): partial(measured, each) for each in WORKLOADS}, markdown)


def sizes(workload: Workload) -> list[TileSizes]:
    """Every size of the sweep that fits a shape."""
    found = []
    for queries, keys, pairs in itertools.product(QUERIES, KEYS, PAIRS):
        queries, keys = min(queries, workload.length), min(keys, workload.length)
        found.append(TileSizes(queries, keys, min(max(pairs // (queries * keys), 1), workload.heads)))
    return list(dict.fromkeys(found))


def measured(workload: Workload, seconds: float = SECONDS) -> Figures:
    """By size, the ratios of a forward pass and of a training step."""
    tiled, found = CANDIDATES["relattn tiled"], {}
    for size in sizes(workload):
        with _tiles_of(size):
            found[" x ".join(map(str, size))] = [
                figures_of(timed(tiled, replace(workload, mode=mode), seconds).ratio) for mode in (FORWARD, TRAINING)
            ]
    return found


@contextmanager
def _tiles_of(size: TileSizes) -> Iterator[None]:
    chosen, operator.tile_sizes = operator.tile_sizes, lambda problem: size
    try:
        yield
    finally:
        operator.tile_sizes = chosen


def _shape(workload: Workload) -> str:
    return f"{workload.batch}, {workload.heads}, {workload.length}{', causal' * workload.causal}"


def markdown(figures: Mapping[str, Figures]) -> str:
    """One row for each shown size."""
    rows = []
    for shape, found in figures.items():
        ranked = sorted(found, key=lambda size: sum(median for median, _, _ in found[size]))
        rows += [[shape, size, *map(shown, found[size])] for size in [*ranked[:BEST], ranked[-1]]]
    columns = {"B, H, L": "---", "queries x keys x heads": "---", "forward": "---:", "training step": "---:"}
    return table(columns, rows)
