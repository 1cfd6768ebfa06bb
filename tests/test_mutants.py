"""Mutants of the core: every kind, the same for a seed, each a program; the nearest tests run first."""

import ast
import subprocess
from pathlib import Path

import pytest

from tests import mutants, reach, versions


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("return a + b", ["a - b"]),
        ("return a < b", ["a <= b"]),
        ("return a is b", ["a is not b"]),
        ("return a or b", ["a and b"]),
        ("return not a", ["a"]),
        ("return 2", ["3"]),
        ("return True", ["False"]),
        ("a += b", ["a -= b"]),
        ("a = b", ["pass"]),
        ("g(a)", ["pass"]),
        ("raise a", ["pass"]),
        ("'a docstring'", []),
        ("return a, 'a text', None", []),
    ],
)
def test_the_mutants_of_a_line(line: str, expected: list[str], tmp_path: Path) -> None:
    file = tmp_path / "one.py"
    file.write_text(f"ABOVE = 1  # äöü\ndef f(a, b):\n    {line}\n")
    found = list(mutants.mutants_of(file, tmp_path))
    assert [mutant.after.strip("()") for mutant in found] == expected
    for mutant in found:
        text = file.read_bytes()
        mutants.apply(mutant, tmp_path)
        assert ast.dump(ast.parse(file.read_text())) != ast.dump(ast.parse(text))
        file.write_bytes(text)


@pytest.mark.slow
def test_a_seed_draws_the_same_programs(tmp_path: Path) -> None:
    drawn = mutants.draw("1", 30)
    assert drawn == mutants.draw("1", 30) != mutants.draw("2", 30)
    for mutant in drawn:
        assert not any(f"relattn/{part}/" in mutant.file for part in mutants.APART)
        copy = tmp_path / mutant.file
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes((reach.ROOT / mutant.file).read_bytes())
        mutants.apply(mutant, tmp_path)
        ast.parse(copy.read_text())


@pytest.mark.slow
def test_the_nearest_tests_run_first_and_stop_at_a_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (mutant,) = (one for one in mutants.draw("1", 1))
    file = tmp_path / mutant.file
    file.parent.mkdir(parents=True)
    source = (reach.ROOT / mutant.file).read_bytes()
    file.write_bytes(source)
    steps = reach.steps([reach.ROOT / mutant.file])
    ran: list[list[str]] = []

    def run(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        assert file.read_bytes() != source
        ran.append(command[command.index(versions.FAST) + 1 :])
        failed = len(ran) == 2
        return subprocess.CompletedProcess(command, int(failed), "FAILED tests/test_it.py::test_it\n1 failed" * failed)

    monkeypatch.setattr(mutants.subprocess, "run", run)
    assert mutants.killed_by(mutant, tmp_path) == "FAILED tests/test_it.py::test_it"
    assert file.read_bytes() == source
    assert [len(files) for files in ran] == [mutants.GROUPS[0], mutants.GROUPS[1] - mutants.GROUPS[0]]
    order = [steps[reach.ROOT / name] for files in ran for name in files]
    assert order == sorted(order)
