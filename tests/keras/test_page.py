"""The pages on Keras are true, on every backend: a page's ```py blocks run together and print what stands below.

(The ```python blocks of the other pages run together in the tests' own process, where Keras must not be imported.)
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
FENCE = re.compile(r"^```py\n(.*?)^```\n\n```\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def run(arguments: list[str], backend: str, given: str = "") -> str:
    """What a process with these arguments, and this text to read, prints."""
    variables = {**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, "-W", "ignore", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=variables, input=given, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


PAGES = ("keras.md", "keras_article.md", "howto/keras.md")
BOTH = """
import contextlib, io, json, sys
printed = []
for program in json.load(sys.stdin):
    with contextlib.redirect_stdout(io.StringIO()) as output:
        exec(program, {"__name__": "__main__"})
    printed.append(output.getvalue())
print(json.dumps(printed))
"""
"""Keras takes longer to import than a page to run: one process for all of them, each with names of its own."""


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["torch", "jax", "tensorflow"])
def test_code_of_the_pages_runs_and_prints_what_they_say(backend):
    texts = [(ROOT / "docs" / name).read_text() for name in PAGES]
    pages = [FENCE.findall(text) for text in texts]
    assert all(len(blocks) == text.count("```py\n") >= 1 for blocks, text in zip(pages, texts, strict=True))
    programs = ["".join(code for code, _ in blocks) for blocks in pages]
    printed = json.loads(run(["-c", BOTH], backend, json.dumps(programs)))
    assert printed == ["".join(output for _, output in blocks) for blocks in pages]


NAMES = """
from tests.documents.page import PAGES, read
from tests.documents.spans import complaint
spans = {span for page in PAGES for span in read(page.read_text()).spans if "relattn.keras" in span}
assert spans and complaint("relattn.keras.NoSuchName")
print(*(f"{span}: {why}" for span in sorted(spans) if (why := complaint(span))), sep="\\n", end="")
"""


@pytest.mark.slow
def test_what_the_pages_name_exists():
    assert run(["-c", NAMES], "torch") == ""


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_the_example_learns(backend):
    """In forty steps it knows more of a chorale's next note than how often each note sounds (about 4.6 bits)."""
    printed = run(["examples/keras_chorales.py", "--steps", "40", "--encoding", "relative"], backend)
    assert printed.startswith(f"{backend}, relative: 40 steps in ")
    found = re.search(r"held-out chorales: ([\d.]+) bits a note; knowing nothing: ([\d.]+)", printed)
    assert found and float(found[1]) < 4.4 < float(found[2])
