"""Runs tests/keras/suite on each of Keras' backends, a process each: Keras fixes its backend at import."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
SUITE = sorted((ROOT / "tests" / "keras" / "suite").glob("[a-z]*.py"))
QUICKLY = {"XLA_FLAGS": "--xla_backend_optimization_level=0"}
"""Most of JAX's time goes into compilation. The numbers of the contract and of graphs are those of optimized code."""
OPTIMIZED = ("contract", "graphs")


def run(backend: str, files: list[Path], *options: str, **environment: str) -> tuple[int, str]:
    """How many tests of the files passed; the second is what pytest printed. Fails where one of them failed."""
    variables = {**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3", **environment}
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "-W", "ignore", "--tb=short"]
    done = subprocess.run(
        [*command, *options, *map(str, files)], cwd=ROOT, env=variables, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    found = re.search(r"(\d+) passed", done.stdout)
    assert found, done.stdout[-2000:]
    return int(found[1]), done.stdout


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_suite_passes_on_torch():
    """The backend whose tests take the least, as nothing is compiled: it draws most examples."""
    passed, _ = run("torch", SUITE, RELATTN_KERAS_EXAMPLES="10")
    assert passed > 200


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("name", [path.stem for path in SUITE])
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_every_suite_passes_on_every_backend(backend, name):
    flags = QUICKLY if backend == "jax" and name not in OPTIMIZED else {}
    passed, _ = run(backend, [path for path in SUITE if path.stem == name], RELATTN_KERAS_EXAMPLES="1", **flags)
    assert passed > 5


@pytest.mark.slow
def test_a_failure_is_not_lost(tmp_path):
    broken = tmp_path / "broken.py"
    broken.write_text("import os\ndef test():\n    assert os.environ['KERAS_BACKEND'] == 'torch'\n")
    assert run("torch", [broken])[0] == 1
    with pytest.raises(AssertionError, match="1 failed"):
        run("jax", [broken])
