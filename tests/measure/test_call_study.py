"""The study of where a call goes: each part gets its own time and its own instructions."""

import cProfile
import operator

import pytest

from measure.frames import FOLDER
from measure.studies import call
from measure.studies.parts import (
    GENERATED,
    KERNELS,
    OTHER,
    OTHER_PYTHON,
    PYTHON,
    PYTORCH,
    STUDY,
    Share,
    by_library,
    by_part,
    file_of,
    kernel,
    shares_of,
)
from relattn.backends.cpu.library import FILE


def test_a_function_has_its_own_time_and_that_of_functions_of_c():
    """By a clock that the functions advance: one second in generated code, two in the inner file, two in the outer's:
    one of its own, one in C.
    """
    now = [0.0]
    second, made = "now[0] += 1.0", {"now": now, "setitem": operator.setitem}
    for file, text in {
        "<string>": f"def generated():\n {second}",
        FOLDER / "backends/cpu/inner.py": f"def inner():\n {second}; {second}",
        FOLDER / "outer.py": f"def outer():\n {second}; setitem(now, 0, now[0] + 1.0); generated(); inner()",
    }.items():
        exec(compile(text, str(file), "exec"), made)
    profile = cProfile.Profile(lambda: now[0])
    profile.runcall(made["inner"])
    before = profile.getstats()
    profile.runcall(made["outer"])
    found = shares_of(before, profile.getstats())
    # Half of an entry counts for its caller. The outer file has its own, those of three callees, and all of C's.
    assert found == {
        GENERATED: Share(1 / 5, 1 / 7), "backends/cpu/inner.py": Share(2 / 5, 1 / 7), "outer.py": Share(2 / 5, 5 / 7),
    }  # fmt: skip


def test_parts_are_folders_or_files_and_add_up():
    files = {"checks/a.py": 25.0, "checks/b.py": 15.0, "equation/mask.py": 50.0, PYTORCH: 10.0}
    assert by_part(files) == {"checks": 40.0, "equation/mask.py": 50.0, PYTORCH: 10.0}


def test_the_profiler_s_own_time_is_taken_off():
    """Twice as slow: of two parts that seem equal, the one with three of four events takes a quarter."""
    assert Share(0.5, 0.75).percent(2.0) == pytest.approx(25.0)
    assert Share(0.5, 0.25).percent(2.0) == pytest.approx(75.0)


@pytest.mark.parametrize(
    ("code", "file"),
    [
        (kernel.__code__, KERNELS),
        (file_of.__code__, STUDY),
        (pytest.approx.__code__, OTHER_PYTHON),
        (compile("", "<string>", "exec"), GENERATED),
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
        medians = {file: median for file, (median, *_) in one["files"].items()}
        assert (KERNELS in medians) == (case != "triton")
        assert {"encodings/base.py", "equation/tables.py", PYTORCH, GENERATED} <= medians.keys()
        assert sum(medians.values()) == pytest.approx(100.0, abs=0.1)
    counts = {f"{case} {which}": {PYTHON: 3000, KERNELS: 1000} for case in call.CASES for which in call.Pair._fields}
    page = call.markdown(found | {call.LOAD: {"processes": 2.6}, call.INSTRUCTIONS: counts})
    for row in (
        "before, 2.6 processes",
        "| thousands | 4 |",
        "| the kernels | 25.0 |",
        "| Python | 75.0 |",
        "| checks |",
    ):
        assert row in page


def test_what_is_small_in_every_call_is_added_up():
    rows = call.percentages([{"a": 90.0, "b": 9.5, "c": 0.3, "d": 0.2}, {"a": 60.0, "c": 40.0}])
    assert rows == [["a", "90.0", "60.0"], ["c", "0.3", "40.0"], ["b", "9.5", ""], ["all others", "0.2", "0.0"]]
