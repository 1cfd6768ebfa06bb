"""The pages on Keras are true, on every backend: a page's ```py blocks run in one process and print what stands below.

(The ```python blocks of the other pages run together in the tests' own process, where Keras must not be imported.)
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
FENCE = re.compile(r"^```py\n(.*?)^```\n\n```\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def run(arguments: list[str], backend: str, **environment: str) -> str:
    variables = {**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3", **environment}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", *arguments], cwd=ROOT, env=variables, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@pytest.mark.parametrize("name", ["keras.md", "keras_article.md"])
@pytest.mark.parametrize(
    "backend",
    ["torch", pytest.param("jax", marks=pytest.mark.slow), pytest.param("tensorflow", marks=pytest.mark.slow)],
)
def test_code_of_a_page_runs_and_prints_what_it_says(backend, name):
    page = (ROOT / "docs" / name).read_text()
    blocks = FENCE.findall(page)
    assert len(blocks) == page.count("```py\n") >= 4
    assert run(["-c", "".join(code for code, _ in blocks)], backend) == "".join(output for _, output in blocks)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_the_example_learns(backend):
    """In forty steps it knows more of a chorale's next note than how often each note sounds (about 4.6 bits)."""
    printed = run(["examples/keras_chorales.py", "--steps", "40", "--encoding", "relative"], backend)
    assert printed.startswith(f"{backend}, relative: 40 steps in ")
    found = re.search(r"held-out chorales: ([\d.]+) bits a note; knowing nothing: ([\d.]+)", printed)
    assert found and float(found[1]) < 4.4 < float(found[2])
