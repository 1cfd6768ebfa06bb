"""The two wheels, relattn's and the lab's: which files they hold. No compiler is asked for, and no network."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

import relattn

ROOT = Path(__file__).parent.parent
LEFT_BEHIND = shutil.ignore_patterns("_kernels.*", "__pycache__", "*.egg-info", "node_modules", "build")

SOURCES = {"relattn": "src", "relattn_lab": "lab/src"}
FOLDERS = {
    "relattn": "backends checks cli convert distributed encodings equation hf keras nn positions",
    "relattn_lab": "cli listen played shipped support text voices",
}
NO_PYTHON = {
    "relattn": "py.typed backends/cpu/_kernels.failed",  # with a compiler: backends/cpu/_kernels.so
    "relattn_lab": "shipped/README.md shipped/chorales.json shipped/config.json shipped/data.json "
    "shipped/model.safetensors listen/player.LICENSES.txt listen/player.css listen/player.js",
}
COMMANDS = {"relattn": "relattn = relattn.cli:main", "relattn_lab": "relattn-lab = relattn_lab.cli:main"}


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ZipFile]:
    copy = tmp_path_factory.mktemp("wheels")
    for folder in ("src", "lab"):
        shutil.copytree(ROOT / folder, copy / folder, ignore=LEFT_BEHIND)
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"):
        shutil.copy(ROOT / name, copy)
    build = ["-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", "made", ".", "./lab"]
    without_compiler = {**os.environ, "CC": "false", "CXX": "false"}
    made = subprocess.run([sys.executable, *build], cwd=copy, env=without_compiler, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    return {path.name.partition("-")[0]: ZipFile(path) for path in (copy / "made").iterdir()}


@pytest.mark.slow
@pytest.mark.parametrize("package", SOURCES)
def test_a_wheel_holds_its_package_and_nothing_else(package: str, wheels: dict[str, ZipFile]) -> None:
    noted = f"{package}-{relattn.__version__}.dist-info"
    wheel, source = wheels[package], ROOT / SOURCES[package]
    names = {name for name in wheel.namelist() if not name.startswith(f"{noted}/")}
    python = {str(path.relative_to(source)) for path in (source / package).rglob("*.py")}
    assert names == python | {f"{package}/{name}" for name in NO_PYTHON[package].split()}
    assert {name.split("/")[1] for name in names if name.count("/") > 1} == set(FOLDERS[package].split())
    assert COMMANDS[package] in wheel.read(f"{noted}/entry_points.txt").decode()
    assert wheel.read(f"{noted}/licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()
