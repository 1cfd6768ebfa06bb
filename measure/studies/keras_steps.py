"""Time and memory of a training step with relative keys under Keras, in blocks and by the naive formula."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from importlib.util import find_spec

from measure.studies.study import Figures, Study, shown, table

BACKENDS = ("tensorflow", "jax", "torch")
LENGTHS = (512, 1024, 2048, 4096)
NAIVE, ARTICLE, CHOSEN = "naive", "article", "default"
WAYS = (NAIVE, ARTICLE, CHOSEN, "64", "256")
SETTING = (
    "A step is a forward and a backward pass of B = 1, 4 heads of width 64, float32, with relative keys, compiled as "
    "Keras compiles its own (tf.function with XLA, jax.jit; torch runs as it is). naive: S = Q E^T, arranged by a "
    "padded reshape, added to Q K^T, softmax, everything kept for the gradient. article: relattn.keras.Attention, one "
    "table for all heads. default: blocks of queries as relattn chooses them. A number: blocks of so many. MB: what a "
    "step adds to the peak of its process; glibc is told to give freed memory back (MALLOC_MMAP_THRESHOLD_), else it "
    "keeps some 200 MB of a step in blocks on torch. Times are ratios to the naive formula's, medians of at least "
    "fifteen pairs taken in turn; ± marks quartiles that lie more than 10 % apart."
)


def study(name: str) -> Study:
    """Every backend and length."""
    measurements = {
        f"{backend}, {length}": partial(measured, backend, length) for backend in BACKENDS for length in LENGTHS
    }
    return Study(SETTING, measurements, markdown, packages=("keras", *BACKENDS))


def measured(backend: str, length: int) -> Figures:
    """By way, MB of a step, and the ratio of its time to that of the naive formula.

    Raises ValueError: where Keras or its backend is not installed.
    """
    for package in ("keras", backend):
        if find_spec(package) is None:
            raise ValueError(
                f"study: got 'keras' without {package}; expected keras, {', '.join(BACKENDS)}; pip install them"
            )
    ratios = in_a_process(backend, "seconds", str(length), *WAYS)
    return {
        way: {"mb": round(in_a_process(backend, "peak", way, str(length)), 1)}
        | ({"ratio": ratios[way]} if way in ratios else {})
        for way in WAYS
    }


def in_a_process(backend: str, what: str, *arguments: str):
    """What `keras_step` prints in a process of its own.

    Raises RuntimeError: where it fails.
    """
    variables = {**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
    if what == "peak":
        variables["MALLOC_MMAP_THRESHOLD_"] = str(2**20)
    command = [sys.executable, "-W", "ignore", "-m", "measure.studies.keras_step", what, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=variables)
    if done.returncode:
        raise RuntimeError(f"{backend}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def markdown(figures: Mapping[str, Figures]) -> str:
    """One row for each backend, length and way."""
    rows = []
    for key, found in figures.items():
        for way, one in found.items():
            rows.append([*key.split(", "), way, f"{one['mb']:,.0f}", shown(one["ratio"]) if "ratio" in one else "1"])
    return table({"backend": "---", "length": "---:", "way": "---", "MB": "---:", "time": "---:"}, rows)
