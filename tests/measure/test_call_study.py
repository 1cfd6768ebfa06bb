"""The study of where a call goes: each part gets its own time and its own instructions."""

import cProfile
from typing import Any

import pytest

from measure.frames import FOLDER
from measure.studies import call
from measure.studies.parts import (
    KERNELS,
    OTHER,
    OTHER_PYTHON,
    PYTHON,
    PYTORCH,
    Share,
    by_library,
    by_part,
    file_of,
    kernel,
    shares_of,
)
from relattn.backends.cpu.library import FILE


def test_a_function_has_its_own_time_and_that_of_functions_without_a_file():
    """Of five equal loops three are the outer file's: its own, and two of what it calls without a file."""
    loop, made = "n = 0\n while n < 300_000: n += 1\n", {}
    for file, text in {
        "<string>": f"def nowhere():\n {loop} {loop}",
        FOLDER / "backends/cpu/inner.py": f"def inner():\n {loop} {loop}",
        FOLDER / "outer.py": f"def outer():\n {loop} nowhere(); inner()",
    }.items():
        exec(compile(text, str(file), "exec"), made)
    outer: Any = made["outer"]
    profile = cProfile.Profile()
    profile.runcall(outer)
    found = shares_of(profile)
    assert found.keys() == {"outer.py", "backends/cpu/inner.py"}
    assert found["outer.py"].time == pytest.approx(3 / 5, abs=0.15)
    assert sum(share.time for share in found.values()) == pytest.approx(1.0)
    assert sum(share.events for share in found.values()) == pytest.approx(1.0)


def test_parts_are_folders_or_files_and_add_up():
    shares = {"checks/a.py": Share(0.25, 0.5), "checks/b.py": Share(0.25, 0.25), "equation/mask.py": Share(0.5, 0.25)}
    assert by_part(shares) == {"checks": Share(0.5, 0.75), "equation/mask.py": Share(0.5, 0.25)}


def test_the_profiler_s_own_time_is_taken_off():
    """Twice as slow: of two parts that seem equal, the one with three of four events takes a quarter."""
    assert Share(0.5, 0.75).percent(2.0) == pytest.approx(25.0)
    assert Share(0.5, 0.25).percent(2.0) == pytest.approx(75.0)


@pytest.mark.parametrize(
    ("code", "file"),
    [
        (kernel.__code__, KERNELS),
        (file_of.__code__, "unseen"),
        (pytest.approx.__code__, OTHER_PYTHON),
        (compile("", "<string>", "exec"), None),
        ("<built-in method torch.empty>", PYTORCH),
        ("<built-in method builtins.len>", None),
    ],
)
def test_every_function_has_a_place(code, file):
    assert file_of(code) == file


def test_instructions_are_counted_once_where_they_are():
    """A callee's own lines have them; the line after `calls=` has them again."""
    dump = f"""version: 1
fn=(1) f
ob=(2) /lib/libpython3.11.so.1.0
5 100
+1 7
cob=(3) {FILE}
calls=1 9
+2 30
ob=(3)
9 30
ob=(4) /x/torch/lib/libc10.so
* 4
ob=(5) /lib/libc.so.6
-3 2
summary: 143
"""
    assert by_library(dump) == {PYTHON: 107, KERNELS: 30, PYTORCH: 4, OTHER: 2}


def test_every_case_is_divided_and_shown():
    pytest.importorskip("triton", reason="Triton is a package for Linux")
    found = {case: call.measured(case, rounds=3) for case in call.CASES}
    for case, one in found.items():
        assert (KERNELS in one["parts"]) == (case != "triton")
        assert {"call.py", "checks", "encodings"} <= one["parts"].keys()
    counts = {f"{case} {which}": {PYTHON: 3000, KERNELS: 1000} for case in call.CASES for which in call.Pair._fields}
    quiet, busy = (
        call.markdown(found | {call.WHERE: {"commit": "abc", "load": load}, call.INSTRUCTIONS: counts})
        for load in (0.1, 2.6)
    )
    assert ("was quiet" in quiet, "was busy" in quiet) == ("was busy" in busy, "was quiet" in busy) == (True, False)
    for row in ("| thousands | 4 |", "| the kernels | 25.0 |", "| Python | 75.0 |", "| backends/cpu |"):
        assert row in quiet
