"""Layers: which part may import which, read from the source with `ast`, and proved able to fail.

A part is a module or package of relattn, or one module of a package whose modules lie on several floors. It imports
only parts named before it; encodings and backends never import each other; one backend does not import
another's insides; a part imports only the packages that its extra declares. The lab is a distribution of its own, on
relattn's public names and on what its command shares with relattn's. Imports inside functions and under TYPE_CHECKING
are arrows like any other. Two folders of the checkout are in no wheel, and have rules of their own.
"""

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import relattn

REPOSITORY = Path(__file__).parent.parent
PACKAGE = "relattn"
LAB = "relattn_lab"
SOURCES = (REPOSITORY / "src", REPOSITORY / "lab" / "src")

# The compiled kernels lie in the folder of their backend, and rotate for the encodings, too: these modules are one part
# of the ground. The others of the folder are a backend.
COMPILED = {f"{PACKAGE}.backends.cpu.{module}" for module in ("library", "rotation", "sources")}

# From the ground up; PACKAGE is __init__.py, whose public names only the parts after it may use.
PARTS = (
    "errors",
    "checks",
    "checks.values",
    "interception",
    "checks.dtensors",
    "checks.autocast",
    "checks.tensors",
    "compiled",
    "encodings.rope_scaling",
    "positions.offsets",
    "positions",
    "equation",
    "checks.documents",
    "checks.positions",
    "checks.terms",
    "encodings",
    "backends",
    "call",
    "plan",
    "steps",
    "api",
    "varlen",
    "flex",
    "nn",
    "convert",
    PACKAGE,
    "distributed",
    "hf",
    "keras",
    "cli",
    "__main__",
)
APART = {("encodings", "backends"), ("backends", "encodings")}

# What the Keras face shares with the PyTorch side, but for the module that carries weights from one to the other; and
# the modules of it that reach, inside of functions, for the packages under Keras.
UNDER_KERAS = {"errors", "checks.values", "encodings.rope_scaling", "positions.offsets"}
EXCHANGE = f"{PACKAGE}.keras.exchange"
KERAS_BACKENDS = {
    f"{PACKAGE}.keras.loop": {"tensorflow", "jax", "torch"},
    f"{PACKAGE}.keras.waves": {"jax"},
    f"{PACKAGE}.keras.scatter": {"torch"},
    EXCHANGE: {"torch"},
}

# What the lab may import of relattn: public modules, by names without an underscore; files, signals and facts about the
# machine; and in its command the ground of both commands. Nothing else of the lab imports its command, typer or rich.
PUBLIC = {PACKAGE, *(f"{PACKAGE}.{room}" for room in ("convert", "distributed", "errors", "hf", "nn"))}
SHARED = {f"{PACKAGE}.cli.{module}" for module in ("files", "machine", "stopped")}
GROUND = {f"{PACKAGE}.cli", f"{PACKAGE}.cli.commands", f"{PACKAGE}.cli.console"}
COMMAND_ALONE = {"typer", "rich"}

# One backend is written in Triton's language; the others, and what serves them, are PyTorch alone.
KERNELS = f"{PACKAGE}.backends.triton"

# Inside backends: SERVING serves every backend, and KNOWING lists every backend. The others do not import one another.
SERVING = {"base", "operators", "problem_arguments", "problem_operator", "sums"}
KNOWING = {"__init__", "select"}
# Those that ask another by its name: cpu takes its second derivatives of dense, blocks the scores of its blocks.
ASKING = {("cpu", "dense"), ("blocks", "dense")}


@cache
def declared_packages() -> dict[str, set[str]]:
    """The packages that are declared: "" for the core's, then one entry for each extra, and "lab" for the lab's own.

    The lab names relattn with extras, and has their packages, too.
    """
    core, lab = (tomllib.loads((REPOSITORY / path / "pyproject.toml").read_text())["project"] for path in ("", "lab"))
    groups = {"": core["dependencies"], **core["optional-dependencies"], "lab": lab["dependencies"]}

    def packages(lines: list[str]) -> set[str]:
        found: set[str] = set()
        for line in lines:
            own = re.fullmatch(rf"{PACKAGE}\[([\w,]+)\]==[\d.]+", line)
            if own:
                found.update(*(packages(groups[extra]) for extra in own[1].split(",")))
            else:
                found.add(re.split(r"[\[<>=~!; ]", line)[0])
        return found

    return {extra: packages(lines) for extra, lines in groups.items()}


def packages_of(part: str, importer: str = "") -> set[str]:
    """The packages outside the standard library that a part may import, or one module of it."""
    declared = declared_packages()
    if part == "keras":
        return {"numpy"} | declared["keras"] | KERAS_BACKENDS.get(importer, set())
    if part in ("errors", "checks.values", "encodings.rope_scaling"):
        return set()
    if part == "positions.offsets":
        return declared[""] - {"torch"}
    if f"{importer}.".startswith(f"{KERNELS}."):
        return declared[""] | {"triton"}
    if part == "hf":
        return declared[""] | declared["hf"]
    return declared[""] | declared["cli"] if part == "cli" else declared[""]


def imported(path: Path, root: Path, *others: Path) -> Iterator[tuple[int, str]]:
    """Every import of a file under `root`: its line, and the dotted module (of `from a import b`: a.b if a module, here
    or under another root, or private).
    """
    package = path.relative_to(root).parent.parts
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join((*base, node.module) if node.module else base)
            for alias in node.names:
                inner = [one / module.replace(".", "/") / alias.name for one in (root, *others)]
                is_module = any(one.is_dir() or one.with_suffix(".py").is_file() for one in inner)
                private = alias.name.startswith("_")
                yield node.lineno, f"{module}.{alias.name}" if is_module or private else module


def part_of(module: str) -> str:
    if module in COMPILED:
        return "compiled"
    parts = module.split(".")
    inner = ".".join(parts[1:3])
    return inner if inner in PARTS else parts[1] if len(parts) > 1 else PACKAGE


def backend_of(module: str) -> str:
    parts = module.split(".")
    return parts[2] if len(parts) > 2 else "__init__"


def complaint(importer: str, target: str) -> str | None:
    """Why module `importer` must not import module `target`; None where it may."""
    if importer.split(".")[0] == LAB:
        return complaint_about_the_lab(importer, target)
    part, other = part_of(importer), part_of(target)
    if target.split(".")[0] != PACKAGE:
        package = target.split(".")[0]
        allowed = package in packages_of(part, importer) or package in sys.stdlib_module_names
        return None if allowed else f"{part} imports the package {package}, which is not declared for it"
    unplaced = [name for name in (part, other) if name not in PARTS]
    if unplaced:
        return f"{unplaced[0]} is no part of relattn: give it a place in PARTS"
    if part == "keras" and other not in {"keras", *UNDER_KERAS} and importer != EXCHANGE:
        return f"keras imports {target}: it shares only {', '.join(sorted(UNDER_KERAS))} with the PyTorch side"
    if PARTS.index(other) > PARTS.index(part):
        return f"{part} imports {target}, which lies above it"
    if (part, other) in APART:
        return f"{part} imports {target}: {part} and {other} never import each other"
    if part == other == "backends":
        mine, its = backend_of(importer), backend_of(target)
        if mine != its and mine not in KNOWING and its not in SERVING and (mine, its) not in ASKING:
            return f"backend {mine} imports {target}, the insides of another"
    return None


def complaint_about_the_lab(importer: str, target: str) -> str | None:
    """Why module `importer` of the lab must not import module `target`; None where it may."""
    package = target.split(".")[0]
    is_command = importer.startswith((f"{LAB}.cli", f"{LAB}.__main__"))
    if package == PACKAGE:
        allowed = target in PUBLIC | SHARED or (is_command and target in GROUND)
        return None if allowed else f"{importer} imports {target}, which is not public"
    if package == LAB:
        is_above = target.startswith(f"{LAB}.cli") and not is_command
        return f"{importer} imports {target}, which lies above it" if is_above else None
    allowed = declared_packages()[""] | declared_packages()["lab"]
    if package in (allowed if is_command else allowed - COMMAND_ALONE) or package in sys.stdlib_module_names:
        return None
    return f"{importer} imports the package {package}, which is not declared for it"


def complaints(*sources: Path) -> list[str]:
    """One line for every forbidden import of relattn and the lab, under the first folder that holds them."""
    found = []
    for source in sources:
        for path in sorted(path for package in (PACKAGE, LAB) for path in (source / package).rglob("*.py")):
            relative = path.relative_to(source).with_suffix("")
            importer = ".".join(part for part in relative.parts if part != "__init__")
            for line, target in dict.fromkeys(imported(path, source, *sources)):
                reason = complaint(importer, target)
                if reason:
                    found.append(f"{path.relative_to(source)}:{line}: {reason}")
    return found


def test_no_arrow_goes_up():
    assert (SOURCES[0] / PACKAGE / "equation").is_dir()
    assert (SOURCES[1] / LAB / "cli").is_dir()
    assert complaints(*SOURCES) == []


def test_the_design_draws_the_parts_in_this_order():
    drawn = re.findall(r"^    \|   ([\w.]+) ", (REPOSITORY / "DESIGN.md").read_text(), re.MULTILINE)
    assert tuple(reversed(drawn)) == PARTS


def test_oracles_import_nothing_of_ours():
    oracles = sorted((REPOSITORY / "tests" / "oracle").rglob("*.py"))
    assert oracles
    for path in oracles:
        for line, module in imported(path, REPOSITORY):
            own = module.startswith("tests.oracle")
            known = module.split(".")[0] in {"numpy", "pytest", *sys.stdlib_module_names}
            assert own or known, f"{path.name}:{line} imports {module}"


def complaint_outside(importer: str, target: str) -> str | None:
    """Why a module that is in no wheel must not import module `target`; None where it may.

    measure/ imports all of relattn and of the lab, private modules too, and what it measures; of the tests only the
    calls of the Triton kernels. ptxemu/ knows nothing of relattn.
    """
    folder, package = importer.split(".")[0], target.split(".")[0]
    if folder == "ptxemu":
        allowed = {"ptxemu", "numpy", "torch"} | ({"pytest"} if importer.startswith("ptxemu.tests") else set())
    else:
        declared = declared_packages()
        allowed = {"measure", PACKAGE, LAB, "triton", "jax", "tensorflow"}.union(*declared.values())
        allowed |= {"tests"} if target.startswith("tests.triton.") else set()
    return None if package in allowed or package in sys.stdlib_module_names else f"{importer} imports {target}"


def complaints_outside(root: Path, *folders: str) -> list[str]:
    """One line for every forbidden import of the folders under `root`."""
    found = []
    for path in sorted(path for folder in folders for path in (root / folder).rglob("*.py")):
        importer = ".".join(path.relative_to(root).with_suffix("").parts)
        reasons = (complaint_outside(importer, target) for _, target in imported(path, root))
        found += [f"{path.relative_to(root)}: {reason}" for reason in reasons if reason]
    return found


def test_what_is_in_no_wheel_imports_what_it_may():
    assert complaints_outside(REPOSITORY, "measure", "ptxemu") == []
    emulator = list((REPOSITORY / "ptxemu").rglob("*.py"))
    assert len(emulator) > 20
    assert [path.name for path in emulator if PACKAGE in path.read_text()] == []


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("ptxemu/memory.py", "import relattn"),
        ("ptxemu/memory.py", "from tests import seeds"),
        ("ptxemu/memory.py", "import pytest"),
        ("ptxemu/tests/test_memory.py", "from measure.frames import without_gpu"),
        ("measure/run.py", "from tests import seeds"),
        ("measure/run.py", "from ptxemu import machine"),
    ],
)
def test_what_it_may_not_is_found(tmp_path, name, line):
    (tmp_path / name).parent.mkdir(parents=True)
    (tmp_path / name).write_text(f"import torch\n{line}\n")
    (found,) = complaints_outside(tmp_path, "measure", "ptxemu")
    assert found.startswith(f"{name}: ")


GOOD_HOUSE = {
    "__init__.py": "import importlib\n",
    "errors.py": "from __future__ import annotations\n",
    "checks/__init__.py": "",
    "checks/values.py": "from relattn.errors import ShapeError\n",
    "positions/__init__.py": "",
    "positions/offsets.py": "import numpy as np\nfrom jaxtyping import Int64\nfrom relattn.errors import ShapeError\n",
    "equation/__init__.py": "",
    "equation/table.py": "import torch\nfrom relattn.errors import ShapeError\n",
    "equation/terms.py": "from . import table\nfrom .table import OffsetTable\nfrom .. import errors\n",
    "checks/terms.py": "from relattn.checks import values\nfrom relattn.equation import table\n",
    "encodings/__init__.py": "",
    "encodings/shaw.py": "from relattn.equation import table\nimport relattn.positions.offsets\n",
    "encodings/rotation.py": "from relattn.backends.cpu import library\n",
    "backends/__init__.py": "from relattn.backends.select import select\n",
    "backends/base.py": "from relattn.equation.terms import ScoreTerms\n",
    "backends/sums.py": "from relattn.backends import base\n",
    "backends/dense.py": "from relattn.backends import sums\nfrom relattn.backends.base import Backend\n",
    "backends/sdpa/__init__.py": "from relattn.backends.sdpa.forward import forward\n",
    "backends/sdpa/forward.py": "from relattn.backends.sdpa import strip\n",
    "backends/sdpa/strip.py": "from relattn.backends import sums\n",
    "backends/triton/__init__.py": "from relattn.backends.triton import forward\n",
    "backends/triton/forward.py": "import triton.language as tl\nfrom relattn.backends import base\n",
    "backends/cpu/library.py": "from relattn.errors import ShapeError\n",
    "backends/cpu/operator.py": "from relattn.backends.cpu import library\nfrom relattn.backends.dense import run\n",
    "backends/select.py": "from relattn.backends import dense, sdpa\n",
    "api.py": "from relattn.backends.select import select\n",
    "keras/__init__.py": "from relattn.keras.exchange import to_torch\n",
    "keras/shaw.py": "import keras\nimport numpy as np\nfrom relattn.positions.offsets import sinusoids\n",
    "keras/loop.py": "from relattn.keras import shaw\ndef loop():\n    import tensorflow\n",
    "keras/exchange.py": "def to_torch():\n    import torch\n    import relattn.encodings\n",
    "encodings/catalogue.py": "from relattn.encodings import shaw\n",
    "cli/__init__.py": "def main():\n    from relattn.cli import app\n",
    "cli/app.py": "import typer\nfrom relattn.cli import machine\ndef f():\n    from relattn.cli.convert import run\n",
    "cli/machine.py": "import torch\nimport relattn\n",
    "cli/convert.py": "import safetensors\nfrom relattn.encodings.catalogue import CATALOGUE\n",
    "__main__.py": "from relattn.cli import main\n",
    f"{LAB}/__init__.py": "",
    f"{LAB}/model.py": "import relattn\nfrom relattn import ShawEmbedding, catalogue\nimport transformers\n",
    f"{LAB}/files.py": "from relattn.cli import machine\nimport filelock\nimport safetensors\n",
    f"{LAB}/cli/__init__.py": "from relattn.cli import main\n",
    f"{LAB}/cli/compare.py": f"import rich\nimport accelerate\nfrom {LAB}.model import Model\n",
}


def place(name: str) -> str:
    """Where a file of the good order lies."""
    return name if name.startswith(LAB) else f"{PACKAGE}/{name}"


def build(source: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = source / place(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return source


def test_a_good_order_has_no_complaints(tmp_path):
    assert complaints(build(tmp_path, GOOD_HOUSE)) == []


@pytest.mark.parametrize(
    ("name", "line", "expected"),
    [
        ("equation/table.py", "from relattn.encodings import ShawEmbedding", "equation imports relattn.encodings"),
        ("equation/table.py", "from relattn import api", "equation imports relattn.api"),
        ("equation/table.py", "import relattn.backends.dense as d", "equation imports relattn.backends.dense"),
        ("equation/table.py", "from ..backends.dense import dense", "equation imports relattn.backends.dense"),
        ("equation/table.py", "import relattn_lab", "equation imports the package relattn_lab, which is not declared"),
        ("equation/table.py", "from relattn import ShawEmbedding", "equation imports relattn, which lies above it"),
        ("api.py", "def f():\n    import relattn.nn", "api imports relattn.nn"),
        (
            "errors.py",
            "if TYPE_CHECKING:\n    from relattn.positions.offsets import slopes",
            "errors imports relattn.positions.offsets",
        ),
        ("__init__.py", "import relattn_lab.model", "relattn imports the package relattn_lab, which is not"),
        ("backends/dense.py", "from relattn.encodings.shaw import S", "backends and encodings never import each other"),
        ("encodings/shaw.py", "from relattn.backends import sums", "encodings imports relattn.backends.sums"),
        (
            "encodings/shaw.py",
            "from relattn.backends.cpu import operator",
            "encodings imports relattn.backends.cpu.operator",
        ),
        (
            "backends/cpu/library.py",
            "from relattn.equation import tables",
            "compiled imports relattn.equation, which lies",
        ),
        (
            "backends/cpu/library.py",
            "from relattn.backends.cpu import operator",
            "compiled imports relattn.backends.cpu",
        ),
        ("backends/dense.py", "from relattn.backends.cpu.operator import run", "backend dense imports"),
        ("backends/dense.py", "from relattn.backends.sdpa.strip import strip", "backend dense imports"),
        ("backends/sdpa/strip.py", "from .. import dense", "backend sdpa imports relattn.backends.dense"),
        ("backends/sdpa/strip.py", "from ..dense import run", "backend sdpa imports relattn.backends.dense"),
        ("backends/sums.py", "from relattn.backends.dense import run", "backend sums imports relattn.backends.dense"),
        ("backends/base.py", "from relattn.backends.select import run", "backend base imports relattn.backends.select"),
        (
            "backends/dense.py",
            "from relattn.backends import run",
            "dense imports relattn.backends, the insides",
        ),
        ("backends/sdpa/strip.py", "import triton", "backends imports the package triton"),
        ("api.py", "import transformers", "api imports the package transformers"),
        ("positions/offsets.py", "import torch", "positions.offsets imports the package torch"),
        ("checks/values.py", "from relattn.equation import table", "checks.values imports relattn.equation.table"),
        ("equation/table.py", "from relattn.checks import terms", "equation imports relattn.checks.terms, which lies"),
        ("api.py", "from measure import run", "api imports the package measure"),
        ("cli/convert.py", "import ptxemu", "cli imports the package ptxemu"),
        ("errors.py", "import numpy.linalg", "errors imports the package numpy"),
        ("keras/shaw.py", "import torch", "keras imports the package torch"),
        ("keras/loop.py", "from relattn.encodings import shaw", "keras imports relattn.encodings.shaw: it shares only"),
        ("keras/shaw.py", "from relattn import cli", "keras imports relattn.cli: it shares only"),
        ("keras/exchange.py", "from relattn.cli import app", "keras imports relattn.cli.app, which lies above it"),
        ("api.py", "import relattn.keras.shaw", "api imports relattn.keras"),
        (f"{LAB}/model.py", "import tensorboard", f"{LAB}.model imports the package tensorboard"),
        (f"{LAB}/model.py", "import rich", f"{LAB}.model imports the package rich"),
        (f"{LAB}/model.py", "from relattn.cli import main", f"{LAB}.model imports relattn.cli, which is not public"),
        (f"{LAB}/model.py", f"from {LAB} import cli", f"{LAB}.model imports {LAB}.cli, which lies above it"),
        (
            f"{LAB}/model.py",
            "import relattn.equation.tables",
            f"{LAB}.model imports relattn.equation.tables, which is not",
        ),
        (f"{LAB}/model.py", "from relattn.nn import _x", f"{LAB}.model imports relattn.nn._x, which is not public"),
        (
            f"{LAB}/cli/compare.py",
            "from relattn.cli import app",
            f"{LAB}.cli.compare imports relattn.cli.app, which is",
        ),
        ("cli/app.py", "import matplotlib", "cli imports the package matplotlib"),
        ("cli/convert.py", "import transformers", "cli imports the package transformers"),
        ("cli/convert.py", "def f():\n    import relattn_lab", "cli imports the package relattn_lab, which is not"),
        ("encodings/catalogue.py", "import relattn.convert", "encodings imports relattn.convert, which lies above it"),
        ("attic.py", "import relattn.errors", "attic is no part of relattn"),
    ],
)
def test_a_bad_order_is_found(tmp_path, name, line, expected):
    source = build(tmp_path, GOOD_HOUSE)
    good = GOOD_HOUSE.get(name, "")
    build(source, {name: good + line + "\n"})
    found = complaints(source)
    assert len(found) == 1
    position = len((good + line).splitlines())
    assert found[0].startswith(f"{place(name)}:{position}: ")
    assert expected in found[0]


def loaded_after(*statements: str, **environment: str) -> list[set[str]]:
    """The modules of a fresh interpreter after each of the statements."""
    show = "print(json.dumps(list(sys.modules)), flush=True)"
    program = "\n".join(["import json, sys", *(f"{statement}\n{show}" for statement in statements)])
    variables = {**os.environ, **environment}
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=variables)
    assert run.returncode == 0, run.stderr
    return [set(json.loads(line)) for line in run.stdout.splitlines()]


def test_what_is_not_asked_for_is_not_loaded():
    """In one process, for a start takes seconds: torch not by the import, no extra by a call or by any public name, and
    no backend by the library of compiled kernels.

    Nor does a first call load what PyTorch itself leaves for a first compilation.
    """
    declared = declared_packages()
    extras = set().union(*(packages for extra, packages in declared.items() if extra)) - declared[""] | {"triton"}
    assert {"transformers", "music21", "matplotlib", "typer"} <= extras
    imported, library, explained, called, named = loaded_after(
        "import relattn",
        "import relattn.backends.cpu.library",
        "import torch; relattn.explain(*[torch.ones(1, 2, 5, 4)] * 3)",
        "relattn.relative_attention(*[torch.ones(1, 2, 5, 4)] * 3, is_causal=True, encoding=relattn.T5Bias(2))",
        "[getattr(relattn, name) for name in relattn.__all__]",
    )
    assert PACKAGE in imported
    assert not imported & (extras | {"torch"})
    backends = {module for module in library if module.startswith(f"{PACKAGE}.backends.")}
    assert backends == {f"{PACKAGE}.backends.cpu", f"{PACKAGE}.backends.cpu.library", f"{PACKAGE}.backends.cpu.sources"}
    for loaded in (explained, called, named):
        assert {PACKAGE, "torch"} <= loaded
        assert not loaded & extras
    assert f"{PACKAGE}.encodings.t5" in called
    for loaded in (explained, called):
        assert not loaded & {"sympy", "torch.fx.experimental.symbolic_shapes"}


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["jax", pytest.param("tensorflow", marks=pytest.mark.slow)])
def test_the_keras_face_loads_no_torch(backend):
    (loaded,) = loaded_after("import relattn.keras", KERAS_BACKEND=backend)
    assert {PACKAGE, "keras", backend} <= loaded
    assert "torch" not in loaded


def test_a_public_name_is_declared_for_editors_too():
    """Each name that is imported when asked for, in the imports under TYPE_CHECKING."""
    declared = (REPOSITORY / "src" / PACKAGE / "__init__.py").read_text()
    assert [name for name in relattn._HOMES if f"import {name} as {name}\n" not in declared] == []
