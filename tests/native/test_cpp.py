"""The suite in C++, which `make test-arm` runs where there is no PyTorch, on the instruction sets of this machine."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from relattn.backends.cpu import library
from tests.native.sets import RUNNABLE

ROOT = Path(__file__).parent.parent.parent

SOURCE = Path(__file__).parent / "cpp" / "suite.cpp"


@pytest.mark.slow
def test_the_kernels_are_the_equation_in_float64(tmp_path: Path) -> None:
    compiler = shutil.which("c++")
    assert compiler, "no C++ compiler"
    suite = tmp_path / "suite"
    flags = ["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", f"-I{ROOT}/src/relattn/backends/cpu/kernels"]
    subprocess.run([compiler, *flags, str(SOURCE), "-ldl", "-o", str(suite)], check=True)
    ran = subprocess.run([str(suite), str(library.FILE)], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout
    reported = re.findall(r"^(.+): \d+ numbers within their bounds", ran.stdout, re.MULTILINE)
    assert reported == [name + what for name in RUNNABLE for what in ("", ", bfloat16", ", rotations")]
