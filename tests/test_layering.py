"""Layers: which part may import which, read from the source with `ast`, and proved able to fail.

A part imports only parts listed before it; encodings and backends never import each other; one backend does not import
another's insides; a part imports only the packages that its extra declares. Imports inside functions and under
TYPE_CHECKING are arrows like any other. Two folders of the checkout are in no wheel, and have rules of their own.
"""

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import relattn
import relattn.encodings

REPOSITORY = Path(__file__).parent.parent
PACKAGE = "relattn"

# From the ground up; PACKAGE is __init__.py, whose public names only the parts after it may use.
PARTS = (
    "requirements",
    "errors",
    "arguments",
    "watched",
    "spread",
    "autocast",
    "compiled",
    "rope_scaling",
    "offsets",
    "score",
    "encodings",
    "backends",
    "door",
    "functional",
    "flex",
    "nn",
    "catalogue",
    "convert",
    PACKAGE,
    "distributed",
    "hf",
    "keras",
    "support",
    "lab",
    "cli",
    "__main__",
)
APART = {("encodings", "backends"), ("backends", "encodings")}

# What the Keras face shares with the PyTorch side, but for the module that carries weights from one to the other; and
# the modules of it that reach, inside of functions, for the packages under Keras.
UNDER_KERAS = {"errors", "arguments", "rope_scaling", "offsets"}
EXCHANGE = f"{PACKAGE}.keras.exchange"
KERAS_BACKENDS = {
    f"{PACKAGE}.keras.loop": {"tensorflow", "jax", "torch"},
    f"{PACKAGE}.keras.waves": {"jax"},
    f"{PACKAGE}.keras.scatter": {"torch"},
    EXCHANGE: {"torch"},
}

# The commands that do their work in the lab. All else of the command runs with the extra `cli` alone.
OF_THE_LAB = {f"{PACKAGE}.cli.{command}" for command in ("compare", "compose", "reproduce")}

# One backend is written in Triton's language; the others, and what serves them, are PyTorch alone.
KERNELS = f"{PACKAGE}.backends.triton"

# Inside backends: SERVING serves every backend, and KNOWING lists every backend. The others do not import one another.
SERVING = {"apart", "base", "operators", "philox", "problem_arguments", "problem_operator", "skew"}
KNOWING = {"__init__", "select"}
# The one that asks another by its name: native takes its second derivatives of dense.
ASKING = {("native", "dense")}


def declared_packages() -> dict[str, set[str]]:
    """The packages that pyproject.toml declares: "" for the core's, then one entry for each extra.

    An extra that names another one, as relattn[other], has its packages, too.
    """
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    groups = {"": project["dependencies"], **project["optional-dependencies"]}

    def packages(lines: list[str]) -> set[str]:
        found: set[str] = set()
        for line in lines:
            own = re.fullmatch(rf"{PACKAGE}\[(\w+)\]", line)
            found |= packages(groups[own[1]]) if own else {re.split(r"[\[<>=~!; ]", line)[0]}
        return found

    return {extra: packages(lines) for extra, lines in groups.items()}


def packages_of(part: str, importer: str = "") -> set[str]:
    """The packages outside the standard library that a part may import, or one module of it."""
    declared = declared_packages()
    if part == "keras":
        return {"numpy"} | declared["keras"] | KERAS_BACKENDS.get(importer, set())
    if part in ("errors", "arguments", "rope_scaling"):
        return set()
    if part == "offsets":
        return declared[""] - {"torch"}
    if f"{importer}.".startswith(f"{KERNELS}."):
        return declared[""] | {"triton"}
    if part == "hf":
        return declared[""] | declared["hf"]
    if part == "lab" or importer in OF_THE_LAB:
        return declared[""] | declared["lab"]
    return declared[""] | declared["cli"] if part == "cli" else declared[""]


def imported(path: Path, root: Path) -> Iterator[tuple[int, str]]:
    """Every import of a file under `root`: its line, and the dotted module (of `from a import b`: a.b if a module)."""
    package = path.relative_to(root).parent.parts
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join((*base, node.module) if node.module else base)
            for alias in node.names:
                inner = root / module.replace(".", "/") / alias.name
                is_module = inner.is_dir() or inner.with_suffix(".py").is_file()
                yield node.lineno, f"{module}.{alias.name}" if is_module else module


def part_of(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else PACKAGE


def backend_of(module: str) -> str:
    parts = module.split(".")
    return parts[2] if len(parts) > 2 else "__init__"


def complaint(importer: str, target: str) -> str | None:
    """Why module `importer` must not import module `target`; None where it may."""
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
    if part == "cli" and other == "lab" and importer not in OF_THE_LAB:
        return f"{importer} imports {target}: only {', '.join(sorted(OF_THE_LAB))} need the extra `lab`"
    if PARTS.index(other) > PARTS.index(part):
        return f"{part} imports {target}, which lies above it"
    if (part, other) in APART:
        return f"{part} imports {target}: {part} and {other} never import each other"
    if part == other == "backends":
        mine, its = backend_of(importer), backend_of(target)
        if mine != its and mine not in KNOWING and its not in SERVING and (mine, its) not in ASKING:
            return f"backend {mine} imports {target}, the insides of another"
    return None


def complaints(source: Path) -> list[str]:
    """One line for every forbidden import under `source`/relattn."""
    found = []
    for path in sorted((source / PACKAGE).rglob("*.py")):
        relative = path.relative_to(source).with_suffix("")
        importer = ".".join(part for part in relative.parts if part != "__init__")
        for line, target in dict.fromkeys(imported(path, source)):
            reason = complaint(importer, target)
            if reason:
                found.append(f"{path.relative_to(source)}:{line}: {reason}")
    return found


def test_no_arrow_goes_up():
    source = REPOSITORY / "src"
    assert (source / PACKAGE / "score").is_dir()
    assert complaints(source) == []


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

    measure/ imports all of relattn, private modules too, and what it measures; of the tests only the calls of the
    Triton kernels. ptxemu/ knows nothing of relattn.
    """
    folder, package = importer.split(".")[0], target.split(".")[0]
    if folder == "ptxemu":
        allowed = {"ptxemu", "numpy", "torch"} | ({"pytest"} if importer.startswith("ptxemu.tests") else set())
    else:
        declared = declared_packages()
        allowed = {"measure", PACKAGE, "triton", "jax", "tensorflow"}.union(*declared.values())
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
    "offsets.py": "import numpy as np\nfrom jaxtyping import Int64\nfrom relattn.errors import ShapeError\n",
    "score/__init__.py": "",
    "score/table.py": "import torch\nfrom relattn.errors import ShapeError\n",
    "score/terms.py": "from . import table\nfrom .table import OffsetTable\nfrom .. import errors\n",
    "encodings/__init__.py": "from relattn.encodings.shaw import ShawEmbedding\n",
    "encodings/shaw.py": "from relattn.score import table\nimport relattn.offsets\n",
    "backends/__init__.py": "from relattn.backends.select import select\n",
    "backends/base.py": "from relattn.score.terms import ScoreTerms\n",
    "backends/skew.py": "from relattn.backends import base\n",
    "backends/dense.py": "from relattn.backends import skew\nfrom relattn.backends.base import Backend\n",
    "backends/tiled/__init__.py": "from relattn.backends.tiled.forward import forward\n",
    "backends/tiled/forward.py": "from relattn.backends.tiled import strip\n",
    "backends/tiled/strip.py": "from relattn.backends import skew\n",
    "backends/triton/__init__.py": "from relattn.backends.triton import forward\n",
    "backends/triton/forward.py": "import triton.language as tl\nfrom relattn.backends import base\n",
    "backends/select.py": "from relattn.backends import dense, tiled\n",
    "functional.py": "from relattn.backends.select import select\n",
    "keras/__init__.py": "from relattn.keras.exchange import to_torch\n",
    "keras/shaw.py": "import keras\nimport numpy as np\nfrom relattn.offsets import sinusoids\n",
    "keras/loop.py": "from relattn.keras import shaw\ndef loop():\n    import tensorflow\n",
    "keras/exchange.py": "def to_torch():\n    import torch\n    import relattn.encodings\n",
    "lab/__init__.py": "",
    "lab/model.py": "import relattn\nfrom relattn import ShawEmbedding\nimport transformers\n",
    "catalogue.py": "from relattn.encodings import ShawEmbedding\n",
    "support/__init__.py": "",
    "support/machine.py": "import torch\nimport relattn\n",
    "lab/files.py": "from relattn.support import machine\nimport filelock\nimport safetensors\n",
    "cli/__init__.py": "def main():\n    from relattn.cli import app\n",
    "cli/app.py": "import typer\nfrom relattn.support import machine\ndef f():\n    from relattn.cli.compare "
    "import run\n",
    "cli/compare.py": "import rich\nimport accelerate\nfrom relattn.lab.model import Model\n",
    "cli/convert.py": "import safetensors\nfrom relattn.catalogue import CATALOGUE\n",
    "__main__.py": "from relattn.cli import main\n",
}


def build(source: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = source / PACKAGE / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return source


def test_a_good_order_has_no_complaints(tmp_path):
    assert complaints(build(tmp_path, GOOD_HOUSE)) == []


@pytest.mark.parametrize(
    ("name", "line", "expected"),
    [
        ("score/table.py", "from relattn.encodings import ShawEmbedding", "score imports relattn.encodings"),
        ("score/table.py", "from relattn import functional", "score imports relattn.functional"),
        ("score/table.py", "import relattn.backends.dense as d", "score imports relattn.backends.dense"),
        ("score/table.py", "from ..backends.dense import dense", "score imports relattn.backends.dense"),
        ("score/table.py", "from .. import lab", "score imports relattn.lab"),
        ("score/table.py", "from relattn import ShawEmbedding", "score imports relattn, which lies above it"),
        ("functional.py", "def f():\n    import relattn.nn", "functional imports relattn.nn"),
        ("errors.py", "if TYPE_CHECKING:\n    from relattn.offsets import slopes", "errors imports relattn.offsets"),
        ("__init__.py", "import relattn.lab", "relattn imports relattn.lab"),
        ("backends/dense.py", "from relattn.encodings.shaw import S", "backends and encodings never import each other"),
        ("encodings/shaw.py", "from relattn.backends import skew", "encodings imports relattn.backends.skew"),
        ("backends/dense.py", "from relattn.backends.tiled.strip import strip", "backend dense imports"),
        ("backends/tiled/strip.py", "from .. import dense", "backend tiled imports relattn.backends.dense"),
        ("backends/tiled/strip.py", "from ..dense import run", "backend tiled imports relattn.backends.dense"),
        ("backends/skew.py", "from relattn.backends.dense import run", "backend skew imports relattn.backends.dense"),
        ("backends/base.py", "from relattn.backends.select import run", "backend base imports relattn.backends.select"),
        (
            "backends/dense.py",
            "from relattn.backends import run",
            "dense imports relattn.backends, the insides",
        ),
        ("backends/tiled/strip.py", "import triton", "backends imports the package triton"),
        ("functional.py", "import transformers", "functional imports the package transformers"),
        ("functional.py", "from measure import run", "functional imports the package measure"),
        ("cli/convert.py", "import ptxemu", "cli imports the package ptxemu"),
        ("offsets.py", "import torch", "offsets imports the package torch"),
        ("errors.py", "import numpy.linalg", "errors imports the package numpy"),
        ("keras/shaw.py", "import torch", "keras imports the package torch"),
        ("keras/loop.py", "from relattn.encodings import shaw", "keras imports relattn.encodings.shaw: it shares only"),
        ("keras/shaw.py", "from relattn.lab import model", "keras imports relattn.lab"),
        ("keras/exchange.py", "from relattn.lab import model", "keras imports relattn.lab.model, which lies above it"),
        ("functional.py", "import relattn.keras.shaw", "functional imports relattn.keras"),
        ("lab/model.py", "import tensorboard", "lab imports the package tensorboard"),
        ("lab/model.py", "from relattn.cli import main", "lab imports relattn.cli"),
        ("support/machine.py", "import rich", "support imports the package rich"),
        ("support/machine.py", "from relattn.lab import model", "support imports relattn.lab.model, which lies above"),
        ("cli/app.py", "import matplotlib", "cli imports the package matplotlib"),
        ("cli/convert.py", "import transformers", "cli imports the package transformers"),
        (
            "cli/convert.py",
            "def f():\n    from relattn.lab import model",
            "relattn.cli.convert imports relattn.lab.model",
        ),
        ("catalogue.py", "import relattn.convert", "catalogue imports relattn.convert, which lies above it"),
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
    assert found[0].startswith(f"{PACKAGE}/{name}:{position}: ")
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
    """In one process, for a start takes seconds: torch not by the import, no extra by a call or by any public name.

    Nor does a first call load what PyTorch itself leaves for a first compilation.
    """
    declared = declared_packages()
    extras = set().union(*(packages for extra, packages in declared.items() if extra)) - declared[""] | {"triton"}
    assert {"transformers", "music21", "matplotlib", "typer"} <= extras
    imported, explained, called, named = loaded_after(
        "import relattn",
        "import torch; relattn.explain(*[torch.ones(1, 2, 5, 4)] * 3)",
        "relattn.relative_attention(*[torch.ones(1, 2, 5, 4)] * 3, is_causal=True, encoding=relattn.T5Bias(2))",
        "[getattr(relattn, name) for name in relattn.__all__]",
    )
    assert PACKAGE in imported
    assert not imported & (extras | {"torch"})
    for loaded in (explained, called, named):
        assert {PACKAGE, "torch"} <= loaded
        assert not loaded & extras
    assert f"{PACKAGE}.encodings.t5" in called
    for loaded in (explained, called):
        assert not loaded & {"sympy", "torch.fx.experimental.symbolic_shapes"}


@pytest.mark.parametrize("backend", ["jax", pytest.param("tensorflow", marks=pytest.mark.slow)])
def test_the_keras_face_loads_no_torch(backend):
    (loaded,) = loaded_after("import relattn.keras", KERAS_BACKEND=backend)
    assert {PACKAGE, "keras", backend} <= loaded
    assert "torch" not in loaded


def test_a_public_name_is_declared_for_editors_too():
    """Each name that is imported when asked for, in the imports under TYPE_CHECKING; each encoding in its package."""
    declared = (REPOSITORY / "src" / PACKAGE / "__init__.py").read_text()
    assert [name for name in relattn._HOMES if f"import {name} as {name}\n" not in declared] == []
    at_home = {name for name, home in relattn._HOMES.items() if home == f"{PACKAGE}.encodings"}
    assert set(relattn.encodings.__all__) == at_home
