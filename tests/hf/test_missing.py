"""What `relattn.hf` says where transformers is missing or too old, and that it is there when it is asked for."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from relattn.hf.installed import FIRST, LAST, release
from relattn.hf.models import SINCE

ROOT = Path(__file__).parent.parent.parent
INSTALLED = "import types; sys.modules['transformers'] = types.ModuleType('transformers'); "
INSTALLED += "sys.modules['transformers'].__version__ = '{}'"


WARNED = """
import warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import relattn.hf
    import relattn.hf.patching
ours = [f"{w.category.__name__}: {w.message}" for w in caught if "relattn" in str(w.message)]
print(*ours, relattn.hf.patch.__name__, sep="; ")
"""


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


def test_a_transformers_that_is_too_old():
    assert said(INSTALLED.format("5.3.0"), "relattn.hf") == (
        f"ImportError: transformers: version 5.3.0 is installed, and relattn.hf needs {FIRST} or later; install "
        f"'transformers>={FIRST},<={LAST}.*'"
    )


@pytest.mark.slow
@pytest.mark.parametrize("version", ["5.25.0", "6.0.0.dev0", "5.24.7"])
def test_a_transformers_that_is_newer_than_the_last_that_was_tried(version):
    """One warning, and it is used; a later patch of the last version gives none."""
    warned = (
        f"RelattnWarning: transformers: version {version} is installed, newer than {LAST}, the last that relattn.hf "
        "was run with; a family of models that does not fit is left, and relattn.hf.patch says why; "
    )
    expected = "patch" if version == "5.24.7" else f"{warned}patch"
    assert said(f"import transformers\ntransformers.__version__ = {version!r}", WARNED) == expected


def test_floor_and_ceiling_stand_in_pyproject():
    """Once; in constraints.txt is the last version that was tried, and in hf_versions.toml all of them."""
    project = (ROOT / "pyproject.toml").read_text()
    last = release(LAST)
    assert re.findall(r'"transformers\b.*?"', project) == [f'"transformers>={FIRST},<{last[0]}.{last[1] + 1}"']
    pinned = re.search(r"^transformers==(.*)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert pinned is not None and release(pinned[1]) == last
    tried = [release(one["version"]) for one in tomllib.loads((ROOT / "hf_versions.toml").read_text())["environment"]]
    assert tried == sorted(tried) and {release(since) for since in (FIRST, *SINCE.values(), LAST)} <= {*tried}
    assert tried[0] == release(FIRST) and tried[-1] == last


@pytest.mark.slow
def test_hf_is_there_when_it_is_asked_for():
    assert said("", "print(relattn.hf.patch.__module__)") == "relattn.hf.patching"
