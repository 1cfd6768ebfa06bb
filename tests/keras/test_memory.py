"""A training step needs memory for blocks of queries, not for all pairs, unless another choice is made."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


def peak(backend: str, way: str, length: int) -> float:
    """MB that a step adds to a process, as benchmarks/keras_memory.py measures it."""
    variables = {
        **os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3", "MALLOC_MMAP_THRESHOLD_": str(2**20),
    }  # fmt: skip
    command = [sys.executable, "-W", "ignore", "benchmarks/keras_memory.py", "--peak", way, str(length)]
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
def test_a_long_training_step_takes_an_eighth_of_the_naive_formula(backend):
    """With relative keys in RelativeMultiHeadAttention's loop, and in the article's Attention."""
    naive = peak(backend, "naive", 4096)
    assert peak(backend, "default", 4096) <= naive / 8
    assert peak(backend, "article", 4096) <= naive / 8
