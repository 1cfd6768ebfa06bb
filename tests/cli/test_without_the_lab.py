"""`relattn convert` and `relattn doctor` with the extra `cli` alone: the lab's packages cannot be imported."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from relattn.convert import to_relattn
from tests.convert.cases import CASES
from tests.convert.test_round_trips import assert_same_bits
from tests.test_layering import declared_packages

pytest_plugins = ["tests.contract.fresh"]

MISSING = declared_packages()["lab"] - declared_packages()["cli"] - declared_packages()[""]
"""All that `lab` brings beyond `cli`."""


def without_the_lab(*arguments: object) -> subprocess.CompletedProcess[str]:
    """`relattn` in a process in which the packages of the lab, and its own parts, cannot be imported."""
    blocked = [*sorted(MISSING), "relattn_lab"]
    program = f"import sys\nsys.modules |= dict.fromkeys({blocked})\nfrom relattn.cli import main\nmain()"
    return subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        capture_output=True,
        text=True,
        env=os.environ | {"COLUMNS": "200"},
    )


def test_what_is_missing() -> None:
    assert {"music21", "mido", "matplotlib", "transformers", "accelerate"} <= MISSING


def test_convert(rng: np.random.Generator, tmp_path: Path) -> None:
    checkpoint = CASES["transfo_xl"].checkpoint()
    before, after = tmp_path / "before.safetensors", tmp_path / "after.safetensors"
    save_file(checkpoint, before)
    ran = without_the_lab("convert", before, after, "--from", "transfo_xl", "--to", "relattn")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "2 attention layers from transfo_xl to relattn" in ran.stdout
    assert "transformer-xl" in ran.stdout
    assert_same_bits(load_file(after), to_relattn(checkpoint, "transfo_xl"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [pytest.param(["doctor"], "Backends on cpu", marks=pytest.mark.slow), (["--version"], "relattn 0.")],
)
def test_what_needs_no_lab(arguments: list[str], said: str) -> None:
    ran = without_the_lab(*arguments)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert said in ran.stdout
    assert "fails" not in ran.stdout
