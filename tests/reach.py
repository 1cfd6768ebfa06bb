"""Which files a file reaches by its imports, read with `ast`: nothing is run.

    python -m tests.reach COMMIT        the files of tests that reach what changed since the commit

An import inside a function counts, and so does an attribute of an imported package; what only a type checker imports
does not. A text that is the name of a module is an import, and so is one that names a file of examples/. A test also
reaches what helps it in its own folder, the package of that name, and every module that its texts name: they may be
programs. A file that is not Python is reached by what names it, or its folder, in a text. What lies at the top and is
no page is reached by everything, and so is what nothing names.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDERS = ("src", "lab/src", "tests", "measure", "ptxemu", "examples")
NAMED = re.compile(r"\b(?:relattn|relattn_lab|measure|ptxemu|tests)(?:\.\w+)+")


def is_test(path: Path) -> bool:
    return path.name.startswith("test_")


@cache
def modules(root: Path = ROOT) -> dict[str, Path]:
    """Every file of Python by its dotted name."""
    found = {}
    for path in (path for folder in FOLDERS for path in sorted((root / folder).rglob("*.py"))):
        base = next((root / each for each in ("src", "lab/src") if path.is_relative_to(root / each)), root)
        parts = path.relative_to(base).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def prefixes(name: str) -> Iterator[str]:
    """a, a.b and a.b.c of a.b.c."""
    parts = name.split(".")
    yield from (".".join(parts[: count + 1]) for count in range(len(parts)))


class Names(ast.NodeVisitor):
    """The modules that a file names, and its texts."""

    def __init__(self, package: tuple[str, ...]) -> None:
        self.package, self.modules, self.texts = package, set[str](), set[str]()

    def visit_Import(self, node: ast.Import) -> None:
        self.modules |= {alias.name for alias in node.names}

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        base = self.package[: len(self.package) - node.level + 1] if node.level else ()
        module = ".".join((*base, node.module) if node.module else base)
        self.modules |= {f"{module}.{alias.name}" for alias in node.names}

    def visit_Attribute(self, node: ast.Attribute) -> None:
        names, inner = [node.attr], node.value
        while isinstance(inner, ast.Attribute):
            names, inner = [inner.attr, *names], inner.value
        if isinstance(inner, ast.Name):
            self.modules.add(".".join([inner.id, *names]))
        self.generic_visit(node)

    def visit_If(self, node: ast.If) -> None:
        if not (isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"):
            self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):  # else a docstring
            self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str):
            self.texts.add(node.value)
            self.modules |= {node.value} if NAMED.fullmatch(node.value) else set[str]()


@cache
def names(root: Path = ROOT) -> dict[Path, Names]:
    """What each file of Python names."""
    found = {}
    for module, path in modules(root).items():
        package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        found[path] = Names(tuple(package.split(".")))
        found[path].visit(ast.parse(path.read_text()))
    return found


@cache
def imports(root: Path = ROOT) -> dict[Path, set[Path]]:
    """What each file of Python reaches in one step."""
    known, found = modules(root), {}
    scripts = [path for path in known.values() if path.parent == root / "examples"]
    for module, path in known.items():
        named = {name for each in names(root)[path].modules for name in prefixes(each)}
        if module.startswith(("tests.", "ptxemu.tests.")):
            named |= {f"{package}.conftest" for package in prefixes(module)}
            named |= {each for text in names(root)[path].texts for each in NAMED.findall(text)}
        if is_test(path):
            mirrored = module.split(".")[1]
            own = (f"tests.{mirrored}.", f"relattn.{mirrored}.", f"relattn_{mirrored}.")
            named |= {name for name, other in known.items() if name.startswith(own) and not is_test(other)}
        run = {script for script in scripts if any(script.name in text for text in names(root)[path].texts)}
        found[path] = ({known[name] for name in named if name in known} | run) - {path}
    return found


def steps(changed: Iterable[Path], root: Path = ROOT) -> dict[Path, int]:
    """By how many imports each file reaches what changed; files that do not are left out."""
    graph = imports(root)
    reached = dict.fromkeys(changed, 0)
    for count in range(1, len(graph) + 1):
        last = {path for path, number in reached.items() if number == count - 1}
        if not last:
            break
        reached |= {path: count for path, targets in graph.items() if path not in reached and targets & last}
    return reached


def readers(path: Path, root: Path = ROOT) -> set[Path]:
    """The files of Python that name a file of another kind."""
    if path.parent == root and path.suffix != ".md":
        return set(imports(root))
    words = {path.name, path.parent.name}
    named = {
        file
        for file in imports(root)
        if any(words & set(re.split(r"[/\\\s]", text)) for text in names(root)[file].texts)
    }
    return named or set(imports(root))


def reaching(changed: Iterable[Path], root: Path = ROOT) -> set[Path]:
    """The files that reach what changed."""
    starts = set[Path]()
    for path in changed:
        starts |= {path} if path in imports(root) else readers(path, root)
    return set(steps(starts, root))


def changed_since(commit: str, root: Path = ROOT) -> list[Path]:
    """The files that differ from the commit, those that are gone among them."""
    command = ["git", "-C", str(root), "diff", "--name-only", "--no-renames", commit]
    return [root / line for line in subprocess.check_output(command, text=True).splitlines()]


if __name__ == "__main__":
    reached = reaching(changed_since(sys.argv[1]))
    print(*sorted(path.relative_to(ROOT).as_posix() for path in reached if is_test(path)), sep="\n")
