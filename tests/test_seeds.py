"""Random numbers are fixed by the base seed and a name, and the tool that searches beyond can fail."""

import os
import random
import re
import shlex
import subprocess
import sys
import time
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import search, seeds

ROOT = Path(__file__).parent.parent


def drawn() -> list:
    """A number or more of every generator that tests share."""
    found: list = [random.random(), np.random.rand(), torch.rand(1).item()]

    @settings(max_examples=50)
    @given(st.integers(0, 10**9))
    def body(number: int) -> None:
        found.append(number)

    body()
    return found


def test_a_seed_is_the_same_everywhere(monkeypatch):
    monkeypatch.setattr(seeds, "BASE", "0")
    assert seeds.seed("a test", 3) == 1140509091
    others = {seeds.seed("a test", 4), seeds.seed("a test3"), seeds.seed("a", " test", 3)}
    monkeypatch.setattr(seeds, "BASE", "1")
    assert len({1140509091, *others, seeds.seed("a test", 3)}) == 5


def test_every_generator_starts_from_the_name():
    found = []
    for name in ("one", "one", "another"):
        seeds.start_all(name)
        found.append(drawn())
    assert found[0] == found[1]
    assert all(a != b for a, b in zip(found[0], found[2], strict=True) if a != 0)
    assert sum(a != b for a, b in zip(found[0], found[2], strict=True)) > 40


def test_another_profile_of_hypothesis_changes_nothing():
    """PyTorch's tests of its own load one; the environment variable CI makes it one that fixes its numbers."""
    seeds.start_all("one")
    before = drawn()
    settings.register_profile("theirs", derandomize=True, max_examples=3)
    settings.load_profile("theirs")
    assert settings().derandomize
    seeds.start_all("one")
    assert not settings().derandomize
    assert drawn() == before


def test_generators_made_for_a_name():
    assert seeds.generator("one").random() == seeds.generator("one").random() != seeds.generator("another").random()
    one, again, other = (torch.rand(1, generator=seeds.torch_generator(name)) for name in ("one", "one", "another"))
    assert one == again != other


FIXED_SEED = re.compile(
    r"\b(?:manual_seed(?:_all)?|default_rng|random\.seed|set_random_seed|Random|RandomState|SeedSequence|PRNGKey)"
    r"\(\s*(?:\w+\s*=\s*)?(?:[-+]?\d|[\"'])"
)
"""A generator that starts from a literal, wherever it stands: a text may be a program of another process."""


def test_no_test_starts_a_generator_from_a_literal():
    """A search could not change it."""
    found = [
        f"{path.relative_to(ROOT)}:{source.count(chr(10), 0, match.start()) + 1}: {match[0]}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for source in [path.read_text()]
        for match in FIXED_SEED.finditer(source)
    ]
    assert not found, "use tests/seeds.py:\n" + "\n".join(found)


@pytest.mark.parametrize(
    "call", ["torch.manual_seed({})", "np.random.default_rng(seed={})", "np.random.seed({})", "random.Random(\n    {})"]
)
def test_a_generator_from_a_literal_is_found_out(call):
    for literal in ("0", "-1", "'name'"):
        assert FIXED_SEED.search(call.format(literal))
    for good in ("seed", "seeds.seed(0)", "f'{seed}'", ""):
        assert not FIXED_SEED.search(call.format(good))


def test_hypothesis_does_not_draw_what_loaded_modules_hold(tmp_path, monkeypatch):
    """Its own way would: then a test drew otherwise alone than among others."""
    file = tmp_path / "numbers_of_a_module.py"
    file.write_text(f"NUMBERS = {list(range(5001, 5400, 7))}\n")
    module = types.ModuleType("numbers_of_a_module")
    module.__file__ = str(file)
    seeds.start_all("one")
    before = drawn()
    monkeypatch.setitem(sys.modules, module.__name__, module)
    seeds.start_all("one")
    assert drawn() == before


@pytest.fixture(scope="module")
def shared() -> float:
    return torch.rand(1).item()


def test_a_shared_fixture_draws_by_its_own_name_and_nothing_of_the_test_s(request):
    kept = seeds.states()
    value = request.getfixturevalue("shared")
    after = drawn()
    seeds.restore(kept)
    assert drawn() == after
    seeds.start_all(Path(__file__).relative_to(ROOT).as_posix(), "shared", 0)
    assert torch.rand(1).item() == value


# --- the search, on small files of tests; each run starts processes, which takes seconds

BY_CHANCE = """
import pytest

@pytest.mark.parametrize("n", range(6))
def test_by_chance(n, rng):
    assert rng.random() < 0.5
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where a small file of tests runs as those of this folder do."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p tests.conftest -p no:cacheprovider -p no:xdist")
    return tmp_path


@pytest.mark.slow
def test_what_a_seed_fails_is_written_down_and_repeated_by_that_seed(folder, monkeypatch):
    (folder / "test_by_chance.py").write_text(BY_CHANCE)
    names = [f"test_by_chance.py::test_by_chance[{n}]" for n in range(6)]
    expected = {}
    for base in ("1", "2"):
        monkeypatch.setattr(seeds, "BASE", base)
        expected[base] = [name for name in names if seeds.generator(name, "rng").random() >= 0.5]
    assert search.run(1, 300, ["test_by_chance.py"]) == (expected["1"], 1)
    name = next(name for name in expected["1"] if name not in expected["2"])
    for base, code in (("1", 1), ("2", 0)):
        command = shlex.split(search.repeat(int(base), name))
        assert command[0] == f"RELATTN_SEED={base}"
        monkeypatch.setenv(*command[0].split("="))
        assert subprocess.run(command[1:], capture_output=True).returncode == code


@pytest.mark.slow
def test_a_run_ends_when_time_is_up(folder):
    """With what failed before that, and with its processes."""
    (folder / "test_long.py").write_text(
        "import os, time\ndef test_fails():\n    assert False\n"
        "def test_long():\n    open('pid', 'w').write(str(os.getpid())); time.sleep(600)\n"
    )
    begin = time.monotonic()
    failed, code = search.run(1, 30, ["test_long.py"])
    assert time.monotonic() - begin < 30 + 2 * search.STOP_SECONDS
    assert (failed, code) == (["test_long.py::test_fails"], None)
    with pytest.raises(ProcessLookupError):
        os.kill(int((folder / "pid").read_text()), 0)


@pytest.mark.parametrize(
    ("runs", "ends"),
    [
        ([([], 0), (["a", "b"], 1), ([], 0), (["c"], None)], 1),  # goes on after a failure
        ([([], 0), ([], None)], 0),
        ([([], 0), ([], 4)], 2),  # what pytest does not understand
    ],
)
def test_a_search_ends_with_what_it_found(runs, ends, monkeypatch, capsys):
    clock, given = iter(range(0, 1000, 10)), []

    def run(seed, seconds, arguments):
        given.append(seed)
        return runs[len(given) - 1]

    monkeypatch.setattr(search, "run", run)
    monkeypatch.setattr(search.time, "monotonic", lambda: next(clock))
    assert search.main(["--minutes", str((10 * len(runs) + 5) / 60), "-k", "something"]) == ends
    assert len(set(given)) == len(runs)
    printed = capsys.readouterr().out
    for seed, (failed, _) in zip(given, runs, strict=True):
        assert all(printed.count(search.repeat(seed, name)) == 2 for name in failed)
    whole = sum(code in (0, 1) for _, code in runs)
    if ends < 2:
        assert f"{whole} seeds tried whole, {sum(len(failed) for failed, _ in runs)} failures" in printed
