"""What `relattn.hf` says where transformers is missing or too old, and that it is there when it is asked for."""

import subprocess
import sys

import pytest

TOO_OLD = "import types; sys.modules['transformers'] = types.ModuleType('transformers'); "
TOO_OLD += "sys.modules['transformers'].__version__ = '4.57.1'"


def said(before: str, statement: str) -> str:
    """The last line that a fresh interpreter writes, to stdout or, where it dies, to stderr."""
    program = f"import sys\n{before}\nimport relattn\n{statement}"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    return (run.stdout or run.stderr).splitlines()[-1]


@pytest.mark.parametrize("statement", ["relattn.hf", "import relattn.hf", "from relattn.hf.patching import patch"])
def test_without_transformers(statement):
    assert said("sys.modules['transformers'] = None", statement) == (
        "ModuleNotFoundError: relattn.hf: transformers is not installed; install it with pip install '.[hf]' in a "
        "clone of relattn"
    )


def test_a_transformers_that_lacks_the_names():
    assert said(TOO_OLD, "relattn.hf") == (
        "ImportError: transformers: version 4.57.1 is installed, and relattn.hf needs 5.0 or later; install "
        "'transformers>=5.0,<6'"
    )


def test_hf_is_there_when_it_is_asked_for():
    assert said("", "print(relattn.hf.patch.__module__)") == "relattn.hf.patching"
