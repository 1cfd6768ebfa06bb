"""The package as pip and an index see it: what it requires, what it says where that is missing, its description."""

import importlib.metadata
import importlib.util
import os
import re
import runpy
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import relattn
import relattn_lab
from relattn import call

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
VERSIONS = tomllib.loads((ROOT / "versions.toml").read_text())


def numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def test_pip_and_the_import_ask_for_the_same() -> None:
    floors = {}
    for line in PROJECT["dependencies"]:
        package, floor = re.match(r"([a-z]+)>=([\d.]+)", line).groups()
        floors[package] = numbers(floor)
    assert floors == relattn._PACKAGES
    assert PROJECT["requires-python"] == f">={'.'.join(map(str, relattn._PYTHON))}"


def test_the_floors_are_tried() -> None:
    oldest = VERSIONS["environment"][-1]
    tried = {name: numbers(version) for name, version in (package.split("==") for package in oldest["packages"])}
    assert {name: version[: len(relattn._PACKAGES[name])] for name, version in tried.items()} == relattn._PACKAGES
    assert numbers(oldest["python"]) == relattn._PYTHON


def test_every_python_of_the_classifiers_passed() -> None:
    named = {line.rpartition(" ")[2] for line in PROJECT["classifiers"] if re.search(r"Python :: 3\.\d+", line)}
    rows = re.findall(
        r"^\| (3\.\d+)\.\d+ \|.*?\| \d+ passed", (ROOT / "docs" / "versions.md").read_text(), re.MULTILINE
    )
    assert named == set(rows)


def with_versions(monkeypatch: pytest.MonkeyPatch, found: Callable[[str], str]) -> None:
    monkeypatch.setattr(importlib.metadata, "version", found)


def test_what_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    with_versions(monkeypatch, lambda package: {"torch": "2.5.1+cu124"}.get(package, "99"))
    said = "relattn: got torch 2.5.1+cu124; expected torch 2.6 or later; install it: pip install 'torch>=2.6'"
    with pytest.raises(ImportError, match=f"^{re.escape(said)}$"):
        relattn._check_requirements()


@pytest.mark.parametrize("version", ["2.6", "2.6.0", "2.6.0+cpu", "2.10.1", "3.0.0a0+git1234", "2.6.0rc1"])
def test_what_is_new_enough(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    with_versions(monkeypatch, lambda package: {"torch": version}.get(package, "99"))
    relattn._check_requirements()


def test_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(package: str) -> str:
        raise importlib.metadata.PackageNotFoundError(package)

    with_versions(monkeypatch, missing)
    relattn._check_requirements()  # the packages are there, and what noted their versions is not
    monkeypatch.setattr(importlib.util, "find_spec", lambda package: None)
    said = "relattn: got a Python without torch; expected torch 2.6 or later; install it: pip install 'torch>=2.6'"
    with pytest.raises(ModuleNotFoundError, match=f"^{re.escape(said)}$") as raised:
        relattn._check_requirements()
    assert raised.value.name == "torch"


def test_an_old_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 10, 4, "final", 0))
    with pytest.raises(
        ImportError, match=r"^relattn: got Python 3\.10; expected 3\.11 or later; make an environment of a newer one$"
    ):
        relattn._check_requirements()


def test_the_import_says_it_first(tmp_path: Path) -> None:
    """In an environment with another torch: the sentence is the last line, and nothing of the insides stands above."""
    noted = tmp_path / "torch-2.4.1.dist-info"
    noted.mkdir()
    (noted / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.4.1\n")
    path = os.pathsep.join([str(tmp_path), *sys.path])
    run = subprocess.run(
        [sys.executable, "-c", "import relattn.nn"],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": path},
    )
    assert run.returncode == 1
    assert run.stderr.splitlines()[-1].startswith(
        "ImportError: relattn: got torch 2.4.1; expected torch 2.6 or later; "
    )
    assert "encodings" not in run.stderr


def test_the_description_has_no_relative_link() -> None:
    described = runpy.run_path(str(ROOT / "setup.py"), run_name="read")["long_description"]
    readme = (ROOT / "README.md").read_text()
    home = "https://example.org/relattn"
    targets = re.findall(r"\]\(([^)\s]+)\)", described(readme, home))
    assert len(targets) == len(re.findall(r"\]\(([^)\s]+)\)", readme)) > 20
    assert all(re.match(r"https://|#", target) for target in targets)
    assert f"with relative positions on diagonals]({home}/raw/main/docs/figures/with_and_without.png)" in described(
        readme, home
    )
    homeless = described(readme, "")
    assert not [target for target in re.findall(r"\]\(([^)\s]+)\)", homeless) if not re.match(r"https://|#", target)]
    assert "The equation has it in full" in homeless


def test_one_version() -> None:
    assert f"\nversion: {relattn.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"## [{relattn.__version__}]" in (ROOT / "CHANGELOG.md").read_text()
    lab = tomllib.loads((ROOT / "lab" / "pyproject.toml").read_text())["project"]
    assert f"relattn[cli,hf]=={relattn.__version__}" in lab["dependencies"]
    assert relattn_lab.__version__ == relattn.__version__


@pytest.mark.parametrize(("part", "package"), [("hf", "transformers"), ("keras", "keras")])
def test_a_part_names_its_extra(part: str, package: str) -> None:
    program = f"import sys; sys.modules[{package!r}] = None; import relattn.{part}"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert run.returncode == 1
    said = f"relattn.{part}: {package} is not installed; install it with pip install '.[{part}]' in a clone of relattn"
    assert run.stderr.splitlines()[-1] == f"ModuleNotFoundError: {said}"


def test_a_graph_that_this_torch_cannot_make(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call, "HAS_GRAPHS", False)
    query = torch.ones(1, 2, 4, 8)
    said = (
        f"torch.compile, torch.export: got torch {torch.__version__}; expected 2.8 or later, which can trace relattn; "
        "call it under torch.compiler.disable, or install a later torch"
    )
    torch.compiler.reset()
    for compiled in (relattn.relative_attention, relattn.nn.RelativeMultiheadAttention(16, 2)):
        arguments = [query] * 3 if compiled is relattn.relative_attention else [torch.ones(1, 4, 16)]
        with pytest.raises(Exception, match=re.escape(said)):
            torch.compile(compiled, backend="eager")(*arguments)
    outside = torch.compiler.disable(relattn.relative_attention)
    assert torch.compile(lambda given: outside(given, given, given), backend="eager")(query).shape == query.shape
    torch.compiler.reset()
