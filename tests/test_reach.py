"""Which tests reach a change, on a small tree, and that the tree of today has no test that reaches nothing."""

import subprocess
from pathlib import Path

import pytest

from tests import reach

TREE = {
    "src/relattn/__init__.py": "if TYPE_CHECKING:\n    from relattn import hf\n",
    "src/relattn/terms.py": "'Says relattn.hf in its docstring.'\nimport torch\n",
    "src/relattn/backends/__init__.py": "NAMES = ['relattn.backends.dense']\n",
    "src/relattn/backends/dense.py": "def run():\n    from .. import terms\n",
    "src/relattn/hf/__init__.py": "",
    "src/relattn/hf/masks.py": "MESSAGE = 'see relattn.backends.dense'\n",
    "tests/__init__.py": "",
    "tests/conftest.py": "",
    "tests/test_terms.py": "from relattn import terms\n",
    "tests/test_backends.py": "import relattn\nrelattn.backends.run()\n",
    "tests/test_program.py": "RUN = 'import sys; from relattn.hf.masks import mask'\n",
    "tests/test_pages.py": "PAGE = 'docs/start.md'\n",
    "tests/test_script.py": "RUN = ['python', 'examples/decoder.py']\n",
    "examples/decoder.py": "",
    "ptxemu/tests/conftest.py": "",
    "ptxemu/tests/test_memory.py": "",
    "tests/hf/conftest.py": "",
    "tests/hf/made.py": "import relattn.terms\n",
    "tests/hf/test_masks.py": "",
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, text in TREE.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


TERMS = {"tests/test_terms.py", "tests/test_backends.py", "tests/hf/test_masks.py"}
EVERY = {name for name in TREE if "test_" in name}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ("src/relattn/terms.py", TERMS),  # by an import, a package's list and a helper in the test's folder
        ("src/relattn/backends/dense.py", {"tests/test_backends.py"}),  # not by the words of a message
        ("src/relattn/hf/masks.py", {"tests/hf/test_masks.py", "tests/test_program.py"}),  # by its folder, by a program
        ("src/relattn/hf/gone.py", EVERY),  # nothing names it
        ("tests/hf/conftest.py", {"tests/hf/test_masks.py"}),
        ("tests/conftest.py", {name for name in EVERY if name.startswith("tests")}),
        ("ptxemu/tests/conftest.py", {"ptxemu/tests/test_memory.py"}),
        ("examples/decoder.py", {"tests/test_script.py"}),
        ("tests/test_terms.py", {"tests/test_terms.py"}),
        ("docs/start.md", {"tests/test_pages.py"}),
        ("docs/other.md", {"tests/test_pages.py"}),  # by its folder
        ("notes/other.md", EVERY),
        ("pyproject.toml", EVERY),
    ],
)
def test_the_tests_that_a_change_reaches(changed: str, expected: set[str], root: Path) -> None:
    reached = reach.reaching([root / changed], root)
    assert {path.relative_to(root).as_posix() for path in reached if reach.is_test(path)} == expected


def test_steps_count_imports(root: Path) -> None:
    dense = root / "src/relattn/backends/dense.py"
    assert reach.steps([dense], root) == {
        dense: 0, root / "src/relattn/backends/__init__.py": 1, root / "tests/test_backends.py": 2,
    }  # fmt: skip


def test_what_changed_since_a_commit(root: Path) -> None:
    """Also what is gone, and what is not committed yet."""
    git = ["git", "-C", str(root), "-c", "user.name=one", "-c", "user.email=one@example.com"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "one"]):
        subprocess.run([*git, *command], check=True)
    (root / "tests/test_terms.py").unlink()
    (root / "src/relattn/terms.py").write_text("")
    assert reach.changed_since("HEAD", root) == [root / "src/relattn/terms.py", root / "tests/test_terms.py"]


@pytest.mark.slow
def test_the_equation_reaches_most_tests_and_a_backend_of_keras_few() -> None:
    tests = {path for path in reach.imports() if reach.is_test(path)}
    package = reach.ROOT / "src/relattn"
    assert len(tests & reach.reaching([package / "equation" / "terms.py"])) > 0.9 * len(tests)
    assert len(tests & reach.reaching([package / "keras" / "loop.py"])) < 0.1 * len(tests)
