"""setup.py without a compiler: the build succeeds, and what the compiler said is kept."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from relattn.backends.cpu import library
from tests.native.sets import of

ROOT = Path(__file__).parents[2]
BROKEN = "#!/bin/sh\necho 'kernels.cpp:1:1: error: this compiler is broken' >&2\nexit 1\n"
FAILURES = {
    "broken": "kernels.cpp:1:1: error: this compiler is broken",
    "missing": "no/such/compiler",
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", FAILURES)
def test_a_build_without_a_compiler_succeeds(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "no/such/compiler"
    if kind == "broken":
        compiler = tmp_path / "broken"
        compiler.write_text(BROKEN)
        compiler.chmod(0o755)
    copy = tmp_path / "copy"
    shutil.copytree(
        ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("_kernels.*", "__pycache__", "*.egg-info")
    )
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"):
        shutil.copy(ROOT / name, copy)
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    environment = {**os.environ, "CC": str(compiler), "CXX": str(compiler)}
    subprocess.run(command, cwd=copy, env=environment, check=True, capture_output=True, timeout=120)
    binary = copy / "src/relattn/backends/cpu/_kernels.so"
    assert not binary.exists()
    assert FAILURES[kind] in binary.with_suffix(".failed").read_text()
    monkeypatch.setattr(library, "FILE", binary)
    said = of("generic")
    assert isinstance(said, str) and said.startswith("its kernels were not compiled when relattn was installed: ")
    assert FAILURES[kind] in said
